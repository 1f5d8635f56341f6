//! Tools that test the library, and with which hosts test their own parts.

mod check_store;

pub use check_store::{StoreUnderTest, check_store};

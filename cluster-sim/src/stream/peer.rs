//! A peer process: follows the source into its own folder, or drops what it receives.

use std::sync::Arc;

use auditstream::protocol::{NameFilter, Subscription};
use auditstream::store::lmdb::LmdbStore;
use auditstream::store::{Applier, DiscardApplier};

use super::source::SOURCE;
use crate::cli::{PeerArgs, Receiver};
use crate::fault::Fault;
use crate::link::Following;
use crate::proc::{Command, Event, talk};
use crate::store;
use crate::watched::Watched;

/// Runs the process until the parent ends or kills it.
///
/// # Errors
/// A store that cannot be opened, an address that is none.
pub(crate) fn run(args: &PeerArgs) -> Result<(), Fault> {
    talk::run(|| follow(args))
}

fn follow(args: &PeerArgs) -> Result<(), Fault> {
    let name = store::node_name(&args.name)?;
    let source = store::node_name(SOURCE)?;
    let store = match args.receiver {
        Receiver::Lmdb => Some(store::open(&args.data, &name, args.durability)?),
        Receiver::Discard => None,
    };
    let position = match &store {
        Some(store) => store.source_state_of(&source).map_err(Fault::run)?.map(|state| state.position()),
        None => None,
    };
    let inner: Arc<dyn Applier> = match &store {
        Some(store) => store.applier(),
        None => Arc::new(DiscardApplier::default()),
    };
    let watched = Arc::new(Watched::new(inner, position));
    let subscription = subscription(args)?;
    let head = position.map_or(0, |position| position.boundary.sequence.get());
    talk::say(&Event::Ready {
        head,
        log_bytes: 0,
        offered: 0,
        accepted: 0,
        refused: 0,
        address: String::new(),
    });
    let mut following = None;
    while let Some(command) = talk::hear()? {
        match command {
            Command::Go { source, target, hold_at } => {
                watched.aim(target, hold_at);
                let address = source.parse().map_err(Fault::run)?;
                let applier: Arc<dyn Applier> = watched.clone();
                following = Some(Following::start(&name, address, applier, subscription.clone())?);
            }
            Command::Target { target } => watched.aim(target, None),
            Command::Progress => talk::say(&Event::At(watched.counts())),
            Command::Hash => say_hash(store.as_ref())?,
            Command::End => {
                following.take().map_or(Ok(()), Following::stop)?;
                store.map_or(Ok(()), |store| store.close().map_err(Fault::run))?;
                talk::say(&Event::Ended);
                return Ok(());
            }
            other => {
                return Err(Fault::run(format!("a peer was told {other:?}, which only a source can do")));
            }
        }
    }
    Ok(())
}

fn subscription(args: &PeerArgs) -> Result<Subscription, Fault> {
    let Some(left_out) = &args.without_origin else { return Ok(Subscription::all()) };
    let origins = NameFilter::Exclude([store::node_name(left_out)?].into());
    Subscription::new(NameFilter::All, origins, None).map_err(Fault::run)
}

/// A peer that discards has nothing to hash.
fn say_hash(store: Option<&LmdbStore>) -> Result<(), Fault> {
    let (hash, rows) = match store {
        Some(store) => {
            let hash = store::content_hash(store)?;
            (hash.to_string(), hash.rows())
        }
        None => (String::new(), 0),
    };
    talk::say(&Event::Hash { hash, rows });
    Ok(())
}

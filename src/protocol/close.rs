//! How a stream ends.

use super::message::{CloseCode, RefuseReason};

/// The end of a stream: the code that the peer is told, and a text for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Close {
    /// The code in the close frame.
    pub code: CloseCode,
    /// What happened, to which value, and the way out.
    pub text: String,
}

impl Close {
    /// A close with this code and text.
    pub fn new(code: CloseCode, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }
}

/// Why a stream is over.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum CloseReason {
    /// The output is gone; nothing more can be said to the peer.
    Output(String),
    /// The peer said goodbye.
    Peer(Close),
    /// This side closes; the close frame was handed to the output.
    Here(Close),
    /// The source refused the subscription.
    Refused(RefuseReason, String),
}

impl std::fmt::Display for CloseReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Output(text) => write!(f, "the connection is gone: {text}"),
            Self::Peer(close) => write!(f, "closed by the peer ({:?}): {}", close.code, close.text),
            Self::Here(close) => write!(f, "closed here ({:?}): {}", close.code, close.text),
            Self::Refused(reason, text) => {
                write!(f, "the source refused the subscription ({reason:?}): {text}")
            }
        }
    }
}

//! The oracles on one stream: they decode its bytes for themselves and compare with the model.

use std::collections::BTreeMap;

use bytes::BytesMut;

use crate::protocol::{
    Dictionary, Frame, Message, NodeName, SegmentRef, Start, Subscription, TableName, decode_frame,
};

use super::model::{Had, Model, Wants};
use super::oracles::Oracle;

/// What was seen on one stream so far.
#[derive(Debug, Default)]
pub(super) struct WireOracle {
    /// Bytes of the stream that are not decoded yet.
    pub(super) tap: BytesMut,
    origins: BTreeMap<u16, NodeName>,
    tables: BTreeMap<u16, TableName>,
    /// What the peer asked for, by id.
    asked: BTreeMap<u32, Subscription>,
    /// The stream that runs: streams begun so far, and what this one selects.
    pub(super) streams: u32,
    wants: Option<Wants>,
    /// What the peer said that it has, and what earlier streams of this connection brought.
    had: Vec<Had>,
    start: u64,
    delivered: u64,
    /// Everything eligible up to here was delivered.
    cursor: u64,
    pub(super) position: u64,
}

type Verdict = Result<(), (Oracle, String)>;

impl WireOracle {
    /// The peer subscribed.
    pub(super) fn asked(&mut self, id: u32, subscription: Subscription) {
        self.asked.insert(id, subscription);
    }

    /// Whether a subscription was asked for and is not accepted yet.
    pub(super) fn is_asked(&self) -> bool {
        !self.asked.is_empty()
    }

    /// Looks at what was written since the last call.
    pub(super) fn check(&mut self, model: &Model, peer: &NodeName) -> Verdict {
        loop {
            match decode_frame(&mut self.tap) {
                Ok(None) => return Ok(()),
                Err(error) => return Err((Oracle::Delivery, format!("the stream cannot be read: {error}"))),
                Ok(Some(Frame::Segment(frame))) => self.segment(&frame, model)?,
                Ok(Some(Frame::Message(message))) => self.message(message, model, peer)?,
            }
        }
    }

    fn message(&mut self, message: Message, model: &Model, peer: &NodeName) -> Verdict {
        match message {
            Message::Accepted { id, start, .. } => self.accepted(id, start.sequence.get(), model, peer)?,
            Message::Dictionary(Dictionary::Origin(id, name)) => {
                self.origins.insert(id.0, name);
            }
            Message::Dictionary(Dictionary::Table(id, table)) => {
                self.tables.insert(id.0, table.name);
            }
            Message::SequenceUpdate(boundary) => self.at_position(boundary.sequence.get(), model)?,
            _ => {}
        }
        Ok(())
    }

    /// A stream begins. What lies before its start, and is selected, the peer must have had.
    fn accepted(&mut self, id: u32, start: u64, model: &Model, peer: &NodeName) -> Verdict {
        let Some(subscription) = self.asked.remove(&id) else {
            return Err((Oracle::Resume, format!("subscription {id} was accepted and never asked for")));
        };
        if let Some(before) = self.wants.take() {
            self.had.push((before, self.position));
        }
        match subscription.start() {
            Start::Covered(_) => {}
            Start::Beginning | Start::After(_) => self.had.clear(),
        }
        self.had.extend(subscription.covered().into_iter().map(|coverage| {
            (Wants::new(peer.clone(), &coverage.selection), coverage.boundary.sequence.get())
        }));
        self.wants = Some(Wants::new(peer.clone(), subscription.selection()));
        (self.cursor, self.delivered) = (0, 0);
        if let Some(lost) = self.next_eligible(model, start) {
            let text = format!("the stream starts after {start}, but the peer never had sequence {lost}");
            return Err((Oracle::Resume, text));
        }
        self.streams += 1;
        self.start = start;
        (self.cursor, self.position) = (start, start);
        Ok(())
    }

    /// The first entry up to `last` that has to be delivered next.
    fn next_eligible(&self, model: &Model, last: u64) -> Option<u64> {
        model.next_eligible(self.wants.as_ref()?, &self.had, self.cursor, last)
    }

    fn segment(&mut self, frame: &[u8], model: &Model) -> Verdict {
        let bad = |error: crate::protocol::ProtocolError| (Oracle::Delivery, error.to_string());
        let segment = SegmentRef::parse(frame).map_err(bad)?;
        segment.verify().map_err(bad)?;
        for transaction in segment.transactions() {
            let transaction = transaction.map_err(bad)?;
            for entry in transaction.entries() {
                let entry = entry.map_err(bad)?;
                let sequence = transaction.sequence_of(&entry).get();
                self.delivered(sequence, model)?;
                let Some(expected) = model.entry(sequence) else {
                    return Err((Oracle::Delivery, format!("sequence {sequence} is not in the log")));
                };
                let same = self.origins.get(&transaction.header.origin.0) == Some(&expected.origin)
                    && self.tables.get(&entry.header.table.0) == Some(&expected.table)
                    && (transaction.header.version, entry.header.ordinal, entry.header.kind)
                        == (expected.version, expected.ordinal, expected.kind)
                    && entry.key == expected.key
                    && (entry.value.len(), crc32fast::hash(entry.value)) == expected.value;
                if !same {
                    return Err((
                        Oracle::Delivery,
                        format!("sequence {sequence} is not what the log has there"),
                    ));
                }
            }
        }
        self.at_position(segment.header().end.sequence.get(), model)
    }

    fn delivered(&mut self, sequence: u64, model: &Model) -> Verdict {
        let oracle = if self.delivered == 0 && self.start > 0 { Oracle::Resume } else { Oracle::Delivery };
        if sequence <= self.cursor {
            let text = format!("sequence {sequence} comes after {}", self.cursor);
            return Err((oracle, text));
        }
        match self.next_eligible(model, sequence) {
            Some(expected) if expected == sequence => {}
            expected => {
                return Err((
                    oracle,
                    format!("sequence {sequence} was delivered, expected was {expected:?}"),
                ));
            }
        }
        self.cursor = sequence;
        self.delivered += 1;
        Ok(())
    }

    fn at_position(&mut self, position: u64, model: &Model) -> Verdict {
        if position < self.position {
            return Err((Oracle::Monotony, format!("position {position} comes after {}", self.position)));
        }
        if position > 0 && !model.boundaries.contains_key(&position) {
            return Err((Oracle::Monotony, format!("position {position} is not the end of a transaction")));
        }
        if let Some(missing) = self.next_eligible(model, position) {
            let text = format!("position {position} was sent, but sequence {missing} was not");
            return Err((Oracle::Position, text));
        }
        self.position = position;
        self.cursor = self.cursor.max(position);
        Ok(())
    }
}

//! The oracles on one stream: they decode its bytes for themselves and compare with the model.

use std::collections::BTreeMap;

use bytes::BytesMut;

use crate::protocol::{Dictionary, Frame, Message, NodeName, SegmentRef, TableName, decode_frame};

use super::model::{Model, Wants};
use super::oracles::Oracle;

/// What was seen on one stream so far.
#[derive(Debug, Default)]
pub(super) struct WireOracle {
    /// Bytes of the stream that are not decoded yet.
    pub(super) tap: BytesMut,
    origins: BTreeMap<u16, NodeName>,
    tables: BTreeMap<u16, TableName>,
    pub(super) accepted: bool,
    start: u64,
    delivered: u64,
    /// Everything eligible up to here was delivered.
    cursor: u64,
    pub(super) position: u64,
}

type Verdict = Result<(), (Oracle, String)>;

impl WireOracle {
    /// Looks at what was written since the last call.
    pub(super) fn check(&mut self, model: &Model, wants: &Wants) -> Verdict {
        loop {
            match decode_frame(&mut self.tap) {
                Ok(None) => return Ok(()),
                Err(error) => return Err((Oracle::Delivery, format!("the stream cannot be read: {error}"))),
                Ok(Some(Frame::Segment(frame))) => self.segment(&frame, model, wants)?,
                Ok(Some(Frame::Message(message))) => self.message(message, model, wants)?,
            }
        }
    }

    fn message(&mut self, message: Message, model: &Model, wants: &Wants) -> Verdict {
        match message {
            Message::Accepted { start, .. } => {
                self.accepted = true;
                self.start = start.sequence.get();
                (self.cursor, self.position) = (self.start, self.start);
            }
            Message::Dictionary(Dictionary::Origin(id, name)) => {
                self.origins.insert(id.0, name);
            }
            Message::Dictionary(Dictionary::Table(id, table)) => {
                self.tables.insert(id.0, table.name);
            }
            Message::SequenceUpdate(boundary) => self.at_position(boundary.sequence.get(), model, wants)?,
            _ => {}
        }
        Ok(())
    }

    fn segment(&mut self, frame: &[u8], model: &Model, wants: &Wants) -> Verdict {
        let bad = |error: crate::protocol::ProtocolError| (Oracle::Delivery, error.to_string());
        let segment = SegmentRef::parse(frame).map_err(bad)?;
        segment.verify().map_err(bad)?;
        for transaction in segment.transactions() {
            let transaction = transaction.map_err(bad)?;
            for entry in transaction.entries() {
                let entry = entry.map_err(bad)?;
                let sequence = transaction.sequence_of(&entry).get();
                self.delivered(sequence, model, wants)?;
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
        self.at_position(segment.header().end.sequence.get(), model, wants)
    }

    fn delivered(&mut self, sequence: u64, model: &Model, wants: &Wants) -> Verdict {
        let oracle = if self.delivered == 0 && self.start > 0 { Oracle::Resume } else { Oracle::Delivery };
        if sequence <= self.cursor {
            let text = format!("sequence {sequence} comes after {}", self.cursor);
            return Err((oracle, text));
        }
        match model.next_eligible(wants, self.cursor, sequence) {
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

    fn at_position(&mut self, position: u64, model: &Model, wants: &Wants) -> Verdict {
        if position < self.position {
            return Err((Oracle::Monotony, format!("position {position} comes after {}", self.position)));
        }
        if position > 0 && !model.boundaries.contains_key(&position) {
            return Err((Oracle::Monotony, format!("position {position} is not the end of a transaction")));
        }
        if let Some(missing) = model.next_eligible(wants, self.cursor, position) {
            let text = format!("position {position} was sent, but sequence {missing} was not");
            return Err((Oracle::Position, text));
        }
        self.position = position;
        self.cursor = self.cursor.max(position);
        Ok(())
    }
}

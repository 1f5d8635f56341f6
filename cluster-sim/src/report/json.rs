//! The JSON of a run. Names are a contract: later versions add fields and change none.

use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::fingerprint::Fingerprint;
use super::{Cell, Cells, Figure};
use crate::fault::Fault;

/// Rises when a field changes its meaning.
const SCHEMA_VERSION: u32 = 1;

/// Content of one node at the end of the last run.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct NodeContent {
    pub(crate) node: String,
    pub(crate) hash: String,
    pub(crate) rows: u64,
}

/// Everything that a result file holds.
#[derive(Debug)]
pub(crate) struct Result<'a> {
    pub(crate) seed: u64,
    pub(crate) settings: Value,
    pub(crate) fingerprint: &'a Fingerprint,
    pub(crate) verdict: &'static str,
    pub(crate) reasons: &'a [String],
    pub(crate) cells: &'a Cells,
    pub(crate) nodes: &'a [NodeContent],
}

impl Result<'_> {
    fn to_json(&self) -> Value {
        json!({
            "schema_version": SCHEMA_VERSION,
            "suite": "stream",
            "seed": self.seed,
            "settings": self.settings,
            "fingerprint": self.fingerprint,
            "verdict": self.verdict,
            "reasons": self.reasons,
            "cells": self.cells.all().iter().map(cell).collect::<Vec<_>>(),
            "nodes": self.nodes,
        })
    }

    /// Writes the file whole or not at all: under another name first, then renamed.
    ///
    /// # Errors
    /// When the folder cannot be written.
    pub(crate) fn write(&self, path: &Path) -> std::result::Result<(), Fault> {
        let failed = |error: std::io::Error| {
            Fault::Usage(format!("cannot write the result to {}: {error}", path.display()))
        };
        let target = target_of(path)?;
        let text = serde_json::to_string_pretty(&self.to_json()).map_err(Fault::run)?;
        let mut unfinished = target.clone().into_os_string();
        unfinished.push(".unfinished");
        let written =
            std::fs::write(&unfinished, text + "\n").and_then(|()| std::fs::rename(&unfinished, &target));
        if let Err(error) = written {
            // Nothing half-written is left behind.
            let _gone = std::fs::remove_file(&unfinished);
            return Err(failed(error));
        }
        Ok(())
    }
}

/// The file that a path stands for, behind links. Pipes and devices are refused: they would be replaced by a file.
fn target_of(path: &Path) -> std::result::Result<PathBuf, Fault> {
    let target = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    match target.metadata() {
        Ok(metadata) if !metadata.is_file() => Err(Fault::Usage(format!(
            "--json {} is not a file; give the name of a file, new or old",
            path.display()
        ))),
        _ => Ok(target),
    }
}

/// The folder that a file is to lie in.
fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// Refuses a result file that could not be written at the end, before a minute was spent on it.
///
/// # Errors
/// When it is a folder, or its folder is not there or cannot be written.
pub(crate) fn check_path(path: &Path) -> std::result::Result<(), Fault> {
    let target = target_of(path)?;
    tempfile::NamedTempFile::new_in(folder_of(&target)).map(|_| ()).map_err(|error| {
        let shown = path.display();
        Fault::Usage(format!(
            "cannot write --json {shown}: {error}; give a file in a folder that can be written"
        ))
    })
}

fn cell(cell: &Cell) -> Value {
    let mut object = Map::new();
    object.insert("workload".to_owned(), cell.workload.clone().into());
    object.insert("variant".to_owned(), cell.variant.clone().into());
    object.insert("peers".to_owned(), cell.peers.into());
    object.insert("receiver".to_owned(), cell.receiver.into());
    object.insert("durability".to_owned(), cell.durability.clone().into());
    object.insert("records".to_owned(), cell.records.into());
    let mut reasons = Map::new();
    for figure in Figure::ALL {
        let spread = cell.spread(figure);
        if spread.is_none() {
            reasons.insert(figure.name().to_owned(), cell.reason(figure).into());
        }
        object.insert(figure.name().to_owned(), json!(spread));
    }
    object.insert("not_measured".to_owned(), Value::Object(reasons));
    Value::Object(object)
}

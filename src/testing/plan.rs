//! What a seed stands for.

use std::time::Duration;

use crate::clock::Moment;
use crate::protocol::{NameFilter, NodeName, Selection, TableName};
use crate::receiver::ReceiveConfig;
use crate::sender::{Plant, Ring, YieldPolicy};
use crate::store::StorePlant;

use super::clock::Costs;
use super::coverage::{Fault, LinkState};
use super::oracles::Oracle;
use super::rng::Rng;

/// A known fault to build in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Planted {
    /// None: the product.
    #[default]
    Nothing,
    /// One of the sender or of the ring.
    Sender(Plant),
    /// A worker that yields by another policy.
    Policy(YieldPolicy),
    /// One of the store.
    Store(StorePlant),
    /// The receiver acknowledges what it has only received.
    AcknowledgeEarly,
}

/// More than a segment's header lists.
pub(super) const TABLES: usize = 36;

/// Most nodes of a cluster.
pub(super) const NODES_MAX: usize = 5;

/// The tables that most entries are in.
pub(super) const BUSY_TABLES: usize = 5;

#[derive(Debug, Clone)]
pub(super) struct LinkPlan {
    pub(super) source: usize,
    pub(super) peer: usize,
    pub(super) selection: Selection,
    pub(super) window: usize,
    pub(super) delay: Duration,
    pub(super) kibibyte: u64,
}

#[derive(Debug, Clone)]
pub(super) struct FaultPlan {
    pub(super) fault: Fault,
    pub(super) link: usize,
    /// Any other link in the wanted state will do.
    pub(super) anywhere: bool,
    pub(super) at_source: bool,
    pub(super) not_before: Moment,
    pub(super) wanted: LinkState,
    pub(super) give_up: Moment,
    pub(super) lasts: Duration,
}

#[derive(Debug, Clone)]
pub(super) struct WritePlan {
    pub(super) at: Moment,
    pub(super) node: usize,
    /// Transactions in this commit.
    pub(super) group: usize,
}

/// Everything that a seed decides before the run starts.
#[derive(Debug, Clone)]
pub struct Plan {
    pub(super) seed: u64,
    pub(super) planted: Planted,
    /// The only oracle that ends the run, if one is looked for.
    pub(super) sought: Option<Oracle>,
    pub(super) nodes: usize,
    pub(super) skews_ms: Vec<i64>,
    pub(super) links: Vec<LinkPlan>,
    pub(super) costs: Costs,
    pub(super) budget: Duration,
    pub(super) faults: Vec<FaultPlan>,
    pub(super) writes: Vec<WritePlan>,
    pub(super) record_concurrency: usize,
    pub(super) decoded_segments: usize,
    pub(super) queued_frames: usize,
    pub(super) apply_latency: u64,
}

impl Plan {
    /// The plan of this seed.
    #[must_use]
    pub fn from_seed(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let nodes = rng.index(NODES_MAX - 2) + 3;
        let links = links(&mut rng, nodes);
        let (writes, end) = writes(&mut rng, nodes);
        let faults = faults(&mut rng, seed, links.len(), end);
        Self {
            seed,
            planted: Planted::Nothing,
            sought: None,
            nodes,
            skews_ms: (0..nodes).map(|_| signed(&mut rng, 2_000)).collect(),
            links,
            costs: Costs::from_seed(&mut rng),
            budget: [Duration::from_micros(500), Duration::from_millis(1), Duration::from_millis(2)]
                [rng.index(3)],
            faults,
            writes,
            record_concurrency: [1, 3, 10, 150][rng.index(4)],
            decoded_segments: [1, 4, 100][rng.index(3)],
            queued_frames: [2, 20, 512][rng.index(3)],
            apply_latency: [100_000, 1_000_000, 5_000_000][rng.index(3)],
        }
    }

    /// The same plan with a fault built in, and only one oracle to look for it.
    #[must_use]
    pub fn with(self, planted: Planted, sought: Oracle) -> Self {
        Self { planted, sought: Some(sought), ..self }
    }

    pub(super) fn ring(&self) -> Ring {
        match self.planted {
            Planted::Policy(policy) => Ring::new(policy, self.budget),
            Planted::Sender(plant) => Ring::new(YieldPolicy::default(), self.budget).planted(plant),
            _ => Ring::new(YieldPolicy::default(), self.budget),
        }
    }

    pub(super) fn receive_config(&self) -> ReceiveConfig {
        let config = ReceiveConfig::default();
        let bounded = config
            .with_record_concurrency(self.record_concurrency)
            .and_then(|config| config.with_decoded_segments(self.decoded_segments))
            .and_then(|config| config.with_queue(64 * 1024 * 1024, self.queued_frames));
        let config = match bounded {
            Ok(config) => config,
            Err(error) => panic!("{error}"),
        };
        if self.planted == Planted::AcknowledgeEarly { config.acknowledging_early() } else { config }
    }

    /// How many nodes there are.
    #[must_use]
    pub const fn nodes(&self) -> usize {
        self.nodes
    }
}

pub(super) fn signed(rng: &mut Rng, most: u64) -> i64 {
    let size = i64::try_from(rng.between(0, most)).unwrap_or(0);
    if rng.one_in(2) { size } else { -size }
}

pub(super) fn millis(rng: &mut Rng, low: u64, high: u64) -> Duration {
    Duration::from_micros(rng.between(low * 1_000, high * 1_000))
}

pub(super) fn node_name(index: usize) -> NodeName {
    match NodeName::new(format!("node-{index}")) {
        Ok(name) => name,
        Err(error) => panic!("{error}"),
    }
}

pub(super) fn table_name(index: usize) -> TableName {
    match TableName::new(format!("table-{index}")) {
        Ok(name) => name,
        Err(error) => panic!("{error}"),
    }
}

fn links(rng: &mut Rng, nodes: usize) -> Vec<LinkPlan> {
    let mut pairs = Vec::new();
    let shape = rng.index(4);
    for a in 0..nodes {
        for b in 0..nodes {
            let joined = match shape {
                // Star, chain, ring, mesh.
                0 => (a == 0) != (b == 0),
                1 => a.abs_diff(b) == 1,
                2 => (a + 1) % nodes == b,
                _ => a != b && (nodes < 5 || rng.one_in(2)),
            };
            if joined {
                pairs.push((a, b));
            }
        }
    }
    pairs.into_iter().map(|(source, peer)| link(rng, source, peer)).collect()
}

fn link(rng: &mut Rng, source: usize, peer: usize) -> LinkPlan {
    LinkPlan {
        source,
        peer,
        selection: selection(rng, source),
        window: [2_048, 16_384, 65_536, 1 << 20][rng.index(4)],
        delay: millis(rng, 0, 20),
        kibibyte: rng.between(1_000, 200_000),
    }
}

/// What a peer of `source` subscribes to. Never nothing.
pub(super) fn selection(rng: &mut Rng, source: usize) -> Selection {
    let mut some = || (0..TABLES).filter(|_| rng.one_in(2)).map(table_name).collect::<Vec<_>>();
    let (included, excluded) = (some(), some());
    let tables = match rng.index(5) {
        // Next to nothing: the sender skips and hardly ever writes.
        4 => NameFilter::Include([table_name(TABLES - 1)].into()),
        0 => NameFilter::Include(included.into_iter().chain([table_name(1)]).collect()),
        1 => NameFilter::Exclude(excluded.into_iter().filter(|table| *table != table_name(1)).collect()),
        _ => NameFilter::All,
    };
    let origins = match rng.index(8) {
        0 => NameFilter::Exclude([node_name(source)].into()),
        1 => NameFilter::Exclude([node_name(rng.index(3))].into()),
        _ => NameFilter::All,
    };
    match Selection::new(tables, origins) {
        Ok(selection) => selection,
        Err(error) => panic!("{error}"),
    }
}

/// The selection that selects nothing.
pub(super) fn nothing() -> Selection {
    match Selection::new(NameFilter::Include([].into()), NameFilter::All) {
        Ok(selection) => selection,
        Err(error) => panic!("{error}"),
    }
}

fn writes(rng: &mut Rng, nodes: usize) -> (Vec<WritePlan>, Moment) {
    let mut writes = Vec::new();
    let (mut at, mut transactions) = (Moment::from_nanos(1_000_000), 0);
    let wanted = rng.index(60) + 200;
    let mut busy = rng.one_in(2);
    while transactions < wanted {
        let group = if rng.one_in(3) { rng.index(12) + 1 } else { 1 };
        writes.push(WritePlan { at, node: rng.index(nodes), group });
        transactions += group;
        // A quiet phase now and then; now and then commits in quick succession.
        busy = if rng.one_in(20) { !busy } else { busy };
        at = at.plus(match (rng.one_in(40), busy) {
            (true, _) => millis(rng, 300, 900),
            (_, true) => millis(rng, 0, 1),
            (_, false) => millis(rng, 0, 20),
        });
    }
    (writes, at)
}

/// One cell of the table.
fn cell(number: u64) -> (Fault, LinkState) {
    let (faults, states) = (Fault::ALL.len(), LinkState::ALL.len());
    let number = usize::try_from(number % (faults * states) as u64).unwrap_or(0);
    (Fault::ALL[number % faults], LinkState::ALL[number / faults])
}

fn faults(rng: &mut Rng, seed: u64, links: usize, end: Moment) -> Vec<FaultPlan> {
    // Two cells of the table of faults and states are aimed at, in turn.
    let aims: Vec<_> = [seed, seed.wrapping_add(37)].map(cell).to_vec();
    let mut kinds: Vec<_> = aims.iter().map(|(fault, _)| *fault).collect();
    kinds.extend([Fault::Cut, Fault::Cut, Fault::Crash, Fault::Refilter, Fault::Refilter]);
    for _ in 0..rng.index(5) + 3 {
        kinds.push(Fault::ALL[rng.index(Fault::ALL.len())]);
    }
    let mut unclean = 0;
    let mut faults = Vec::new();
    for (place, fault) in kinds.into_iter().enumerate() {
        unclean += usize::from(fault == Fault::UncleanCrash);
        if fault == Fault::UncleanCrash && unclean > 1 {
            continue;
        }
        let aim = aims.get(place).map(|(_, state)| *state);
        let latest = if aim.is_some() { end.as_nanos() / 8 } else { end.as_nanos() };
        let not_before = Moment::from_nanos(rng.between(0, latest));
        faults.push(FaultPlan {
            fault,
            link: rng.index(links),
            anywhere: aim.is_some(),
            at_source: rng.one_in(2),
            not_before,
            wanted: aim.unwrap_or_else(|| LinkState::ALL[rng.index(LinkState::ALL.len())]),
            give_up: if aim.is_some() { end } else { not_before.plus(millis(rng, 100, 800)) },
            lasts: millis(rng, 20, 900),
        });
    }
    faults
}

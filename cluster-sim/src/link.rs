//! STUB
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use auditstream::protocol::{NodeName, Subscription};
use auditstream::sender::YieldPolicy;
use auditstream::store::{Applier, AuditLog};

use crate::fault::Fault;
use crate::proc::SenderCounts;

pub(crate) const THREAD_PREFIX: &str = "audit-worker";
pub(crate) struct Serving {}
impl Serving {
    pub(crate) fn start(_n: &NodeName, _l: Arc<dyn AuditLog>, _a: SocketAddr, _p: YieldPolicy, _b: Duration) -> Result<Self, Fault> { Ok(Self {}) }
    pub(crate) fn address(&self) -> SocketAddr { SocketAddr::from(([127,0,0,1],0)) }
    pub(crate) fn counts(&self) -> SenderCounts { SenderCounts::default() }
    pub(crate) fn peers(&self) -> usize { 0 }
    pub(crate) fn stop(self) -> Result<(), Fault> { Ok(()) }
}
pub(crate) struct Following {}
impl Following {
    pub(crate) fn start(_n: &NodeName, _a: SocketAddr, _p: Arc<dyn Applier>, _s: Subscription) -> Result<Self, Fault> { Ok(Self {}) }
    pub(crate) fn status(&self) -> String { String::new() }
    pub(crate) fn stop(self) -> Result<(), Fault> { Ok(()) }
}

//! Is the other side still there?

use std::time::Duration;

use crate::clock::Moment;
use crate::config::ConfigError;

/// When a silent peer is asked, and when it is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeepaliveConfig {
    interval: Duration,
    timeout: Duration,
}

impl Default for KeepaliveConfig {
    fn default() -> Self {
        Self { interval: Duration::from_secs(30), timeout: Duration::from_secs(60) }
    }
}

impl KeepaliveConfig {
    /// A ping after `interval` without a byte from the peer (30 s), and the end after `timeout` (60 s) in which it
    /// neither sent a byte nor, while the connection was full, made room for one. A peer that reads slowly but steadily is
    /// never given up; one that is gone is, though the buffers on the way to it still take pings.
    ///
    /// # Errors
    /// Below 10 ms or above an hour, or a timeout below the interval: the ping would never be answered in time.
    pub fn new(interval: Duration, timeout: Duration) -> Result<Self, ConfigError> {
        let range = Duration::from_millis(10)..=Duration::from_secs(3600);
        let interval = ConfigError::require(
            range.contains(&interval),
            "ping_interval",
            interval,
            "10 ms to 1 h (default 30 s)",
        )?;
        let holds = range.contains(&timeout) && timeout >= interval;
        let timeout =
            ConfigError::require(holds, "ping_timeout", timeout, "the ping interval to 1 h (default 60 s)")?;
        Ok(Self { interval, timeout })
    }
}

/// What the keepalive asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    Nothing,
    Ping,
    Dead,
}

/// The last signs of life of one connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Keepalive {
    config: KeepaliveConfig,
    received: Moment,
    accepted: Moment,
    pinged: Moment,
}

impl Keepalive {
    pub(super) const fn new(config: KeepaliveConfig, now: Moment) -> Self {
        Self { config, received: now, accepted: now, pinged: now }
    }

    pub(super) const fn on_received(&mut self, now: Moment) {
        self.received = now;
    }

    /// The other side made room in a full connection.
    pub(super) const fn on_accepted(&mut self, now: Moment) {
        self.accepted = now;
    }

    /// What is due, and when to look again.
    pub(super) fn check(&mut self, now: Moment) -> (Due, Moment) {
        let alive = self.received.max(self.accepted);
        let dead_at = alive.plus(self.config.timeout);
        if now >= dead_at {
            return (Due::Dead, now);
        }
        let ping_at = self.received.max(self.pinged).plus(self.config.interval);
        if now >= ping_at {
            self.pinged = now;
            return (Due::Ping, dead_at.min(now.plus(self.config.interval)));
        }
        (Due::Nothing, dead_at.min(ping_at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::START.plus(Duration::from_secs(seconds))
    }

    #[test]
    fn a_silent_peer_is_asked_and_then_given_up() {
        let mut keepalive = Keepalive::new(KeepaliveConfig::default(), at(0));
        assert_eq!(keepalive.check(at(29)), (Due::Nothing, at(30)));
        assert_eq!(keepalive.check(at(30)), (Due::Ping, at(60)));
        assert_eq!(keepalive.check(at(60)).0, Due::Dead);
    }

    #[test]
    fn a_peer_that_takes_bytes_or_answers_is_kept() {
        let mut keepalive = Keepalive::new(KeepaliveConfig::default(), at(0));
        for second in (0..3600).step_by(30) {
            keepalive.on_accepted(at(second));
            assert_ne!(keepalive.check(at(second + 29)).0, Due::Dead, "slow but steady");
        }
        for second in (3600..7200).step_by(30) {
            keepalive.on_received(at(second));
            assert_ne!(keepalive.check(at(second + 29)).0, Due::Dead, "idle but answering");
        }
    }

    #[test]
    fn a_timeout_below_the_interval_is_refused_by_name() {
        let error = KeepaliveConfig::new(Duration::from_secs(2), Duration::from_secs(1));
        assert_eq!(error.map_err(|error| error.setting), Err("ping_timeout"));
    }
}

//! Settings are checked once, when they are set.

/// A setting with a value that cannot work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{setting} is {value}, it must be {allowed}")]
pub struct ConfigError {
    /// The setting's name.
    pub setting: &'static str,
    /// The value that was given.
    pub value: String,
    /// What is allowed, and the default.
    pub allowed: &'static str,
}

impl ConfigError {
    /// Refuses `value` for `setting`.
    pub fn new(setting: &'static str, value: impl std::fmt::Debug, allowed: &'static str) -> Self {
        Self { setting, value: format!("{value:?}"), allowed }
    }

    /// `value` when `holds`, else the refusal.
    ///
    /// # Errors
    /// When it does not hold.
    pub fn require<T: std::fmt::Debug>(
        holds: bool,
        setting: &'static str,
        value: T,
        allowed: &'static str,
    ) -> Result<T, Self> {
        if holds { Ok(value) } else { Err(Self::new(setting, value, allowed)) }
    }
}

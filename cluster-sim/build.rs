//! Notes what the program was built from: every result of a measurement names it.

use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=../.git/HEAD");
    println!("cargo:rerun-if-changed=../.git/index");
    let commit = answer("git", &["rev-parse", "--short=12", "HEAD"]);
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let toolchain = answer(&rustc, &["--version"]);
    let profile = std::env::var("PROFILE").unwrap_or_default();
    println!("cargo:rustc-env=CLUSTER_SIM_COMMIT={}", commit.unwrap_or_else(|| "unknown".to_owned()));
    println!("cargo:rustc-env=CLUSTER_SIM_TOOLCHAIN={}", toolchain.unwrap_or_else(|| "unknown".to_owned()));
    println!("cargo:rustc-env=CLUSTER_SIM_PROFILE={profile}");
}

/// First line of what a command prints, or `None` when it cannot be run or fails.
fn answer(program: &str, arguments: &[&str]) -> Option<String> {
    let output =
        Command::new(program).args(arguments).output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?;
    Some(text.lines().next()?.to_owned())
}

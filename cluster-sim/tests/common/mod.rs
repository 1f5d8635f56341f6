//! What the tests of the program share.

#![allow(dead_code, reason = "each test file uses its own part of it")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

/// The program, its temporary folders inside of `work`.
pub(crate) fn program(work: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cluster-sim"));
    command.env("TMPDIR", work).stdin(Stdio::null());
    command
}

/// Runs the program to its end.
pub(crate) fn run(work: &Path, arguments: &[&str]) -> Output {
    program(work).args(arguments).output().expect("the program starts")
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Asserts the exit code, and shows what was printed when it is another one.
pub(crate) fn assert_code(output: &Output, code: i32) {
    assert_eq!(output.status.code(), Some(code), "{}\n{}", stdout(output), stderr(output));
}

/// Writes a file of `lines` lines.
pub(crate) fn lines_file(folder: &Path, name: &str, lines: usize) -> PathBuf {
    let path = folder.join(name);
    let mut file = std::io::BufWriter::new(std::fs::File::create(&path).expect("a file"));
    for number in 0..lines {
        writeln!(file, "line {number} of {name} {}", "x".repeat(number % 90)).expect("written");
    }
    file.flush().expect("written");
    path
}

/// What the script in `tests/` computes, or `None` without a Python to run it.
pub(crate) fn script_hash(arguments: &[&str]) -> Option<String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/content_hash.py");
    let Ok(output) = Command::new("python3").arg(script).args(arguments).output() else {
        println!("skipped the script: there is no python3");
        return None;
    };
    assert!(output.status.success(), "{}", stderr(&output));
    Some(stdout(&output).trim().to_owned())
}

/// A process that is killed when the test ends, however it ends.
pub(crate) struct Running {
    pub(crate) process: Child,
    out: BufReader<ChildStdout>,
}

impl Running {
    pub(crate) fn start(work: &Path, arguments: &[&str]) -> Self {
        let mut process =
            program(work).args(arguments).stdout(Stdio::piped()).spawn().expect("the program starts");
        let out = BufReader::new(process.stdout.take().expect("piped"));
        Self { process, out }
    }

    /// Reads lines until one satisfies `wanted`, and gives what it answered.
    pub(crate) fn wait_for<T>(&mut self, mut wanted: impl FnMut(&str) -> Option<T>) -> T {
        let mut seen = String::new();
        loop {
            let start = seen.len();
            let read = self.out.read_line(&mut seen).expect("reads");
            assert_ne!(read, 0, "the program ended after:\n{seen}");
            if let Some(answer) = wanted(seen[start..].trim_end()) {
                return answer;
            }
        }
    }

    /// Sends a signal by its name.
    pub(crate) fn signal(&self, name: &str) {
        let pid = self.process.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &pid]).status().expect("kill starts");
        assert!(sent.success());
    }

    pub(crate) fn exit_code(&mut self) -> Option<i32> {
        self.process.wait().expect("ends").code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ended = self.process.kill();
        let _reaped = self.process.wait();
    }
}

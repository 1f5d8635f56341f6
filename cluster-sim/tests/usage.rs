//! Bad input: a sentence that names the value and the way out, exit code 2, nothing left behind.

mod common;

use std::net::TcpListener;
use std::path::Path;

use common::{Running, assert_code, lines_file, run, stderr, stdout};

fn refused(work: &Path, arguments: &[&str], words: &[&str]) {
    let output = run(work, arguments);
    assert_code(&output, 2);
    let text = stderr(&output);
    for word in words {
        assert!(text.contains(word), "{arguments:?} answers without {word:?}: {text}");
    }
    assert!(!text.contains("panicked"), "{text}");
    assert!(text.starts_with("error: "), "{text}");
}

#[test]
fn sizes_and_flags_that_cannot_work_are_refused() {
    let work = tempfile::tempdir().expect("a folder");
    for (flag, value) in [
        ("--records", "-1"),
        ("--records", "0"),
        ("--records", "1e9"),
        ("--records", "NaN"),
        ("--record-size", "0"),
        ("--record-size", "163841"),
        ("--txn", "0"),
        ("--txn", "10001"),
        ("--peers", "0"),
        ("--peers", "1000"),
        ("--peers", "1,,4"),
        ("--budget", "0s"),
        ("--receiver", "disk"),
        ("--durability", "fast"),
        ("--seed", "x"),
        ("--kill-peer", "2"),
    ] {
        let argument = format!("{flag}={value}");
        refused(work.path(), &["stream", &argument], &[flag]);
    }
    refused(work.path(), &["stream", "--colour"], &["--colour"]);
    refused(work.path(), &["stream", "--quick", "--full"], &["--quick", "--full"]);
    refused(work.path(), &["stream", "--key-field", "id"], &["--input"]);
    refused(work.path(), &["frobnicate"], &["frobnicate"]);
}

#[test]
fn help_and_version_are_answered() {
    let work = tempfile::tempdir().expect("a folder");
    for arguments in [&["--help"][..], &["stream", "--help"], &["node", "--help"], &["dump", "--help"]] {
        let output = run(work.path(), arguments);
        assert_code(&output, 0);
        assert!(stdout(&output).contains("Usage"), "{}", stdout(&output));
        assert!(!stdout(&output).contains("__source"), "{}", stdout(&output));
    }
    let output = run(work.path(), &["--version"]);
    assert_code(&output, 0);
    assert!(stdout(&output).starts_with("cluster-sim "), "{}", stdout(&output));
}

#[test]
fn input_files_that_hold_no_records_are_refused_by_line_and_leave_no_result() {
    let work = tempfile::tempdir().expect("a folder");
    let path = |name: &str| work.path().join(name).display().to_string();
    let json = path("result.json");
    let input = |file: &str, words: &[&str]| {
        refused(work.path(), &["stream", "--input", file, "--json", &json], words);
        assert!(!Path::new(&json).exists());
    };
    input(&path("missing"), &["missing", "give a file"]);
    std::fs::write(path("empty"), "").expect("written");
    input(&path("empty"), &["empty", "at least one line"]);
    input(&work.path().display().to_string(), &["folder"]);
    std::fs::write(path("long"), format!("short\n{}\n", "x".repeat(163_841))).expect("written");
    input(&path("long"), &["line 2", "163840", "split it"]);
    std::fs::write(path("json"), "{\"id\":1}\n{}\n").expect("written");
    let arguments = ["stream", "--input", &path("json"), "--key-field", "id"];
    refused(work.path(), &arguments, &["line 2", "id"]);
}

#[test]
fn results_that_could_not_be_written_are_refused_before_the_run() {
    let work = tempfile::tempdir().expect("a folder");
    let missing = work.path().join("missing/result.json").display().to_string();
    refused(work.path(), &["stream", "--json", &missing], &["missing", "give a file"]);
    let file = lines_file(work.path(), "file", 1).display().to_string();
    refused(work.path(), &["stream", "--out", &file], &["--out", "file"]);
    // Neither a pipe nor a device is replaced by a file.
    refused(work.path(), &["stream", "--json", "/dev/null"], &["/dev/null", "not a file"]);
    let used = work.path().join("used");
    std::fs::create_dir_all(used.join("peer-1")).expect("made");
    refused(work.path(), &["stream", "--out", &used.display().to_string()], &["peer-1", "empty folder"]);
}

#[test]
fn a_port_in_use_and_a_folder_in_use_are_refused() {
    let work = tempfile::tempdir().expect("a folder");
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("bound").to_string();
    let data = work.path().join("a").display().to_string();
    refused(work.path(), &["node", "--listen", &address, "--data", &data, "--name", "a"], &[&address]);
    let mut node =
        Running::start(work.path(), &["node", "--listen", "127.0.0.1:0", "--data", &data, "--name", "a"]);
    node.wait_for(|line| line.starts_with("listening on ").then_some(()));
    let again = ["node", "--listen", "127.0.0.1:0", "--data", &data, "--name", "a"];
    refused(work.path(), &again, &["in use", &data]);
    refused(work.path(), &["dump", &data], &["in use", &data]);
}

#[test]
fn folders_without_a_whole_store_of_ours_are_refused() {
    let work = tempfile::tempdir().expect("a folder");
    let folder = |name: &str| {
        let folder = work.path().join(name);
        std::fs::create_dir_all(&folder).expect("made");
        folder
    };
    let missing = work.path().join("missing").display().to_string();
    refused(work.path(), &["dump", &missing], &["missing", "no data.mdb"]);
    let foreign = folder("foreign");
    std::fs::write(foreign.join("data.mdb"), vec![7_u8; 100_000]).expect("written");
    refused(work.path(), &["dump", &foreign.display().to_string()], &["foreign", "not a store"]);
    let truncated = folder("truncated");
    let data = truncated.display().to_string();
    let mut node =
        Running::start(work.path(), &["node", "--listen", "127.0.0.1:0", "--data", &data, "--name", "a"]);
    node.wait_for(|line| line.starts_with("listening on ").then_some(()));
    node.signal("TERM");
    assert_eq!(node.exit_code(), Some(0));
    let file = std::fs::OpenOptions::new().write(true).open(truncated.join("data.mdb")).expect("opens");
    file.set_len(file.metadata().expect("there").len() / 2 / 4096 * 4096).expect("cut");
    refused(work.path(), &["dump", &data], &["cut off", &data]);
}

//! The suite `stream` from the outside, on small amounts.

mod common;

use std::path::Path;

use common::{Running, assert_code, lines_file, run, script_hash, stdout};
use serde_json::Value;

const FIGURES: [&str; 7] = [
    "records_per_s_per_peer",
    "sender_cpu_us_per_entry_per_peer",
    "kernel_floor_us_per_entry",
    "source_process_cpu_us_per_entry_per_peer",
    "yields_per_1000_entries",
    "syscalls_per_1000_entries",
    "writes_per_s",
];

fn read_json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).expect("a result")).expect("JSON")
}

fn cell<'a>(result: &'a Value, workload: &str, variant: &str, peers: u64) -> &'a Value {
    let cells = result["cells"].as_array().expect("an array");
    let found = cells
        .iter()
        .find(|cell| cell["workload"] == workload && cell["variant"] == variant && cell["peers"] == peers);
    found.unwrap_or_else(|| panic!("no cell {workload} {variant} {peers} in {result}"))
}

/// The hashes that were printed, by node.
fn contents(text: &str) -> Vec<(String, String)> {
    let content = |line: &str| {
        let (node, rest) = line.strip_prefix("content of ")?.split_once(": ")?;
        Some((node.to_owned(), rest.split(' ').next()?.to_owned()))
    };
    text.lines().filter_map(content).collect()
}

#[test]
fn a_quick_run_holds_and_its_result_has_every_field_of_the_contract() {
    let work = tempfile::tempdir().expect("a folder");
    let json = work.path().join("result.json");
    let path = json.display().to_string();
    let arguments =
        ["stream", "--quick", "--records", "2000", "--peers", "1,2", "--seed", "7", "--json", &path];
    let output = run(work.path(), &arguments);
    assert_code(&output, 0);
    let text = stdout(&output);
    assert!(text.starts_with("seed: 7\n") && text.ends_with("seed: 7\n"), "{text}");
    assert!(text.contains("verdict: held"), "{text}");
    let result = read_json(&json);
    assert_eq!((&result["schema_version"], &result["seed"]), (&1.into(), &7.into()));
    assert_eq!(result["verdict"], "held");
    assert!(result["reasons"].as_array().is_some_and(|reasons| !reasons.is_empty()));
    for field in ["commit", "cpu", "kernel", "file_system", "toolchain", "profile"] {
        assert!(result["fingerprint"][field].as_str().is_some_and(|text| !text.is_empty()), "{field}");
    }
    for cell in result["cells"].as_array().expect("an array") {
        for figure in FIGURES {
            let spread = &cell[figure];
            let reason = &cell["not_measured"][figure];
            assert!(spread["median"].is_f64() != reason.is_string(), "{figure} in {cell}");
            // A budget that was never spent is a true zero.
            assert!(figure.starts_with("yields") || spread["median"] != 0.0, "{figure} in {cell}");
        }
        for field in ["workload", "variant", "receiver", "durability"] {
            assert!(cell[field].is_string(), "{field} in {cell}");
        }
    }
    for peers in [1, 2] {
        for variant in ["per-record", "per-sender", "budget"] {
            let cell = cell(&result, "catch-up", variant, peers);
            assert_eq!((&cell["records"], &cell["receiver"]), (&2000.into(), &"lmdb".into()));
            assert_eq!(cell["records_per_s_per_peer"]["trials"], 1);
        }
        assert!(cell(&result, "while-writing", "budget", peers)["writes_per_s"]["median"].is_f64());
    }
    for workload in ["audit-txn", "mixed-origins", "random-updates"] {
        cell(&result, workload, "budget", 1);
    }
    assert!(std::fs::read_dir(work.path()).expect("a folder").count() == 1, "something was left behind");
}

#[test]
fn lines_of_a_file_arrive_on_every_peer_as_the_script_and_the_dump_say() {
    let work = tempfile::tempdir().expect("a folder");
    let file = lines_file(work.path(), "lines.txt", 5000).display().to_string();
    let out = work.path().join("out");
    let arguments =
        ["stream", "--quick", "--input", &file, "--peers", "2", "--out", &out.display().to_string()];
    let output = run(work.path(), &arguments);
    assert_code(&output, 0);
    let contents = contents(&stdout(&output));
    let names: Vec<&str> = contents.iter().map(|(node, _)| node.as_str()).collect();
    assert_eq!(names, ["source", "peer-1", "peer-2"], "{}", stdout(&output));
    let hash = &contents[0].1;
    assert!(contents.iter().all(|(_, other)| other == hash), "{contents:?}");
    let dump = run(work.path(), &["dump", &out.join("peer-1").display().to_string()]);
    assert_code(&dump, 0);
    assert_eq!(stdout(&dump).lines().count(), 5000);
    let line: String = b"line 0 of lines.txt ".iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(stdout(&dump).lines().next(), Some(format!("000000000001\t{line}").as_str()));
    let dumped = work.path().join("dump.txt");
    std::fs::write(&dumped, &dump.stdout).expect("written");
    if let Some(expected) = script_hash(&[&file]) {
        assert_eq!(*hash, expected);
        assert_eq!(script_hash(&["--dump", &dumped.display().to_string()]), Some(expected));
    }
}

#[test]
fn keys_of_a_field_keep_the_last_line_of_each_key() {
    let work = tempfile::tempdir().expect("a folder");
    let file = work.path().join("lines.ndjson");
    let line = |number: usize| format!("{{\"id\":\"k{}\",\"n\":{number}}}\n", number % 100);
    std::fs::write(&file, (0..1000).map(line).collect::<String>()).expect("written");
    let file = file.display().to_string();
    let arguments = ["stream", "--quick", "--input", &file, "--key-field", "id", "--peers", "1"];
    let output = run(work.path(), &arguments);
    assert_code(&output, 0);
    let contents = contents(&stdout(&output));
    assert!(stdout(&output).contains("(100 rows)"), "{}", stdout(&output));
    if let Some(expected) = script_hash(&[&file, "--key-field", "id"]) {
        assert!(contents.iter().all(|(_, hash)| *hash == expected), "{contents:?}");
    }
}

#[test]
fn a_peer_that_is_killed_in_the_middle_has_everything_after_its_restart() {
    let work = tempfile::tempdir().expect("a folder");
    let file = lines_file(work.path(), "lines.txt", 30_000).display().to_string();
    for kill in ["0.3", "0.7"] {
        let arguments = ["stream", "--quick", "--input", &file, "--peers", "2", "--kill-peer", kill];
        let output = run(work.path(), &arguments);
        assert_code(&output, 0);
        let contents = contents(&stdout(&output));
        assert_eq!(contents.len(), 3, "{}", stdout(&output));
        assert!(stdout(&output).contains("peer-1 was killed with SIGKILL"), "{}", stdout(&output));
        assert!(contents.iter().all(|(_, hash)| *hash == contents[0].1), "{contents:?}");
    }
}

#[test]
fn an_interrupted_run_stops_its_nodes_and_leaves_nothing_behind() {
    let work = tempfile::tempdir().expect("a folder");
    let mut running = Running::start(work.path(), &["stream", "--records", "200000", "--peers", "1"]);
    running.wait_for(|line| line.starts_with("machine: ").then_some(()));
    running.signal("INT");
    assert_eq!(running.exit_code(), Some(130));
    assert_eq!(std::fs::read_dir(work.path()).expect("a folder").count(), 0, "something was left behind");
}

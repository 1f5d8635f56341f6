//! Two nodes by hand.

mod common;

use std::path::Path;

use common::{Running, assert_code, lines_file, run, stdout};

fn node(work: &Path, name: &str, peers: &[&str], lines: Option<&str>) -> (Running, String) {
    let data = work.join(name).display().to_string();
    let mut arguments = vec!["node", "--listen", "127.0.0.1:0", "--data", &data, "--name", name];
    arguments.extend(["--durability", "nosync"]);
    for peer in peers {
        arguments.extend(["--peer", peer]);
    }
    if let Some(lines) = lines {
        arguments.extend(["--write-lines", lines]);
    }
    let mut running = Running::start(work, &arguments);
    let address = running.wait_for(|line| line.strip_prefix("listening on ").map(str::to_owned));
    (running, address)
}

/// The content that a line of status names, once it covers `rows` rows.
fn content(line: &str, rows: usize) -> Option<String> {
    let (_, rest) = line.split_once("content ")?;
    let (hash, rest) = rest.split_once(' ')?;
    (rest == format!("({rows} rows)")).then(|| hash.to_owned())
}

#[test]
fn two_nodes_replicate_both_ways_and_close_in_order() {
    let work = tempfile::tempdir().expect("a folder");
    let lines = lines_file(work.path(), "lines.txt", 300).display().to_string();
    // Each follows the other, so the first one is told an address that the second one takes later.
    let reserved = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let second = reserved.local_addr().expect("bound").to_string();
    drop(reserved);
    let (mut a, first) = node(work.path(), "a", &[&second], Some(&lines));
    let data = work.path().join("b").display().to_string();
    let arguments = [
        "node",
        "--listen",
        &second,
        "--peer",
        &first,
        "--data",
        &data,
        "--name",
        "b",
        "--durability",
        "nosync",
        "--write-lines",
        &lines,
    ];
    let mut b = Running::start(work.path(), &arguments);
    let of_a = a.wait_for(|line| content(line, 600));
    let of_b = b.wait_for(|line| content(line, 600));
    assert_eq!(of_a, of_b);
    for node in [&mut a, &mut b] {
        node.signal("TERM");
        let last = node.wait_for(|line| line.starts_with("content ").then(|| content(line, 600)));
        assert_eq!(last.as_deref(), Some(of_a.as_str()));
        assert_eq!(node.exit_code(), Some(0));
    }
    let dumps =
        ["a", "b"].map(|name| run(work.path(), &["dump", &work.path().join(name).display().to_string()]));
    dumps.iter().for_each(|dump| assert_code(dump, 0));
    assert_eq!(stdout(&dumps[0]), stdout(&dumps[1]));
    assert_eq!(stdout(&dumps[0]).lines().count(), 600);
}

#[test]
fn a_node_that_was_killed_goes_on_where_it_was() {
    let work = tempfile::tempdir().expect("a folder");
    let lines = lines_file(work.path(), "lines.txt", 2000).display().to_string();
    let (mut a, address) = node(work.path(), "a", &[], Some(&lines));
    let of_a = a.wait_for(|line| content(line, 2000));
    for _ in 0..2 {
        let (mut b, _) = node(work.path(), "b", &[&address], None);
        assert_eq!(b.wait_for(|line| content(line, 2000)), of_a);
        b.signal("KILL");
        assert_eq!(b.exit_code(), None);
    }
}

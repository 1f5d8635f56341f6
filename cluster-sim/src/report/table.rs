//! The table of a run, for people.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

use super::{Cell, Cells, Figure};

/// The table: one line per cell; `n/a` where a figure was not measured, with the reasons below.
pub(crate) fn render(cells: &Cells) -> String {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header([
        "workload",
        "variant",
        "peers",
        "records",
        "records/s per peer (min..max)",
        "sender CPU us",
        "x per-record",
        "x floor",
        "floor us",
        "process CPU us",
        "yields/1000",
        "syscalls/1000",
        "writes/s",
    ]);
    for cell in cells.all() {
        table.add_row(row(cells, cell));
    }
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let mut text = table.to_string();
    text.push_str("\nCPU, yields and system calls are per entry sent to a peer.\n");
    text.push_str(
        "System calls are the worker's writes, reads and looks for ready sockets, as it counts them.\n",
    );
    text.push_str("n/a:\n");
    text.push_str(&missing(cells));
    text
}

fn row(cells: &Cells, cell: &Cell) -> Vec<String> {
    let figure = |figure, digits: usize| {
        let spread = cell.spread(figure);
        spread.map_or_else(|| "n/a".to_owned(), |spread| format!("{:.digits$}", spread.median))
    };
    let sender = cell.spread(Figure::SenderCpu).map(|spread| spread.median);
    let ratio = |other: Option<f64>| match (sender, other) {
        (Some(sender), Some(other)) if other > 0.0 => format!("{:.2}", sender / other),
        _ => "n/a".to_owned(),
    };
    let rate = cell.spread(Figure::RecordsPerSecond).map_or_else(
        || "n/a".to_owned(),
        |rate| format!("{} ({}..{})", thousands(rate.median), thousands(rate.min), thousands(rate.max)),
    );
    let writes = cell.spread(Figure::Writes).map(|writes| thousands(writes.median));
    vec![
        cell.workload.clone(),
        cell.variant.clone(),
        cell.peers.to_string(),
        thousands(cell.records as f64),
        rate,
        figure(Figure::SenderCpu, 3),
        ratio(cells.median(&cell.workload, "per-record", cell.peers, Figure::SenderCpu)),
        ratio(cell.spread(Figure::KernelFloor).map(|spread| spread.median)),
        figure(Figure::KernelFloor, 3),
        figure(Figure::ProcessCpu, 3),
        figure(Figure::Yields, 2),
        figure(Figure::Syscalls, 1),
        writes.unwrap_or_else(|| "n/a".to_owned()),
    ]
}

/// Reasons of figures that were not measured, each once.
fn missing(cells: &Cells) -> String {
    let mut lines: Vec<String> = Vec::new();
    for cell in cells.all() {
        for figure in Figure::ALL.into_iter().filter(|figure| cell.spread(*figure).is_none()) {
            let line = format!("  {} {}: {}\n", cell.workload, figure.name(), cell.reason(figure));
            if !lines.contains(&line) {
                lines.push(line);
            }
        }
    }
    lines.concat()
}

/// A whole number with a comma between thousands.
pub(crate) fn thousands(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 && digits.as_bytes()[at - 1] != b'-' {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_set_apart() {
        assert_eq!(thousands(1_234_567.4), "1,234,567");
        assert_eq!(thousands(999.0), "999");
        assert_eq!(thousands(0.0), "0");
    }

    #[test]
    fn a_figure_that_was_not_measured_is_shown_as_such_with_its_reason() {
        let mut cells = Cells::default();
        let cell = cells.entry(Cell::new("catch-up", "budget", 1, "lmdb", "nosync", 10));
        cell.add(Figure::SenderCpu, 0.25);
        cell.not_measured(Figure::Writes, "the writes had stopped");
        let text = render(&cells);
        assert!(
            text.contains("0.250") && text.contains("n/a") && text.contains("writes had stopped"),
            "{text}"
        );
    }
}

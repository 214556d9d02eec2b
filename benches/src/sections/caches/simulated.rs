//! Measured times of exchanges compared with simulated ones.
//!
//! The simulation's agents and ranks share as many cores as this machine has. Measured times are the
//! medians of the single runs in the files of the exchange sections.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use sim::{Pattern, Spec};

use super::exchange::RUNS;
use crate::bench::Bench;
use crate::error::BenchError;
use crate::policy::RANKS_PER_AGENT;
use crate::results::{Findings, numbers_name};
use crate::rounds::percentile;
use crate::sections::measure::{number, ratio};
use crate::suite::Section;
use crate::table::Table;

/// A kind of run: fan-out, ranks, policy and the bound of its cache.
type Kind = (u32, u32, String, Option<u32>);

pub(in crate::sections) fn run(bench: &mut Bench, section: Section) -> Result<(), BenchError> {
    let mut findings = Findings::new(section);
    let directory = bench.options.write.clone().unwrap_or_else(|| Path::new("docs/results").to_owned());
    for (exchange, pattern) in [(Section::CachedOneToTwo, Pattern::Neighbours), (Section::CachedOneToAll, Pattern::All)]
    {
        let name = numbers_name(bench.options.suite, exchange, RUNS);
        let text = fs::read_to_string(directory.join(&name)).unwrap_or_default();
        let mut table = Table::default();
        table.group("", &["fan-out", "np", "policy"]);
        table.group("seconds", &["measured", "simulated", "ratio"]);
        for ((fanout, np, policy, entries), measured) in measured(&text) {
            let Some(simulated) = simulated(bench, &policy, entries, (fanout, np), pattern) else { continue };
            let bound = entries.map_or_else(String::new, |entries| format!(" {entries}"));
            let row = [fanout.to_string(), np.to_string(), format!("{policy}{bound}")];
            let times = [number(Some(measured)), number(Some(simulated)), ratio(Some(simulated / measured))];
            table.row(row.into_iter().chain(times).collect());
        }
        let title = format!(
            "PMI {exchange} exchange, measured ({name}) and simulated, all agents and ranks on {} cores",
            bench.machine.cores
        );
        findings.table(bench, &title, &table, &[])?;
    }
    findings.write(bench)?;
    Ok(())
}

/// Returns the median of each kind of run in a file of single runs; skips lines that cannot be parsed.
fn measured(text: &str) -> BTreeMap<Kind, f64> {
    let mut lines = text.lines();
    let heads: Vec<&str> = lines.next().unwrap_or_default().split(',').collect();
    let column = |name: &str| heads.iter().position(|head| *head == name);
    let mut runs: BTreeMap<Kind, Vec<f64>> = BTreeMap::new();
    for line in lines {
        let cells: Vec<&str> = line.split(',').collect();
        let cell = |name: &str| column(name).and_then(|column| cells.get(column)).copied().unwrap_or_default();
        // The label contains the bound as well.
        let policy = cell("policy").split(" p").next().unwrap_or_default().to_owned();
        if let (Ok(fanout), Ok(np), Ok(inside)) = (cell("fanout").parse(), cell("np").parse(), cell("inside_s").parse())
        {
            runs.entry((fanout, np, policy, cell("cache_entries").parse().ok())).or_default().push(inside);
        }
    }
    runs.into_iter().filter_map(|(kind, runs)| Some((kind, percentile(runs, 50)?))).collect()
}

/// Returns the simulated time in seconds; `None` if the policy cannot be simulated.
fn simulated(
    bench: &Bench,
    policy: &str,
    entries: Option<u32>,
    (fanout, np): (u32, u32),
    pattern: Pattern,
) -> Option<f64> {
    let policy: nla::core::CachePolicy = policy.parse().ok()?;
    let cache = entries.map_or(Some(policy), |entries| policy.with_entries(entries))?;
    let bytes = bench.options.suite.value_bytes();
    let spec = Spec {
        nodes: np / RANKS_PER_AGENT,
        ppn: RANKS_PER_AGENT,
        fanout,
        cache,
        pattern,
        ready: true,
        value_min: *bytes.start(),
        value_max: *bytes.end(),
        cores: u32::try_from(bench.machine.cores).ok(),
        ..Spec::default()
    };
    sim::run(&spec).ok().map(|report| report.exchange as f64 / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_each_kind_of_run_are_read() {
        let text = "fanout,np,policy,cache_entries,round,inside_s\n\
                    4,64,hcs,,1,0.3\n4,64,hcs,,2,0.1\n4,64,hcs,,3,0.2\n32,64,hcmab-lru p/8,8,1,0.5\nnot a run\n";
        let kind = |fanout, policy: &str, entries| (fanout, 64, policy.to_owned(), entries);
        let expected = [(kind(4, "hcs", None), 0.2), (kind(32, "hcmab-lru", Some(8)), 0.5)];
        assert_eq!(measured(text), expected.into_iter().collect());
    }
}

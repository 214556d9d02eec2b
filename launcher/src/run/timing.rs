//! The end and the duration of each phase of a session: for `--timing`, and after a launch failed or an agent was
//! lost. Times are always recorded. Agents send theirs with their last message.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::os::fd::AsFd;
use std::time::Duration;

use nla::bootstrap::ArrivalTimes;
use nla::core::{AgentId, NamespaceId, Notice, PhaseTimes, Time, TimedPhase, Timing};
use nla::figures;
use nla::sys;

use crate::colour;
use crate::run::rank_locations::RankLocations;

/// The last lines of the table.
const LEGEND: &str = "\
done at: when the last agent was done (fence: had arrived), since scela-run began
min, median, max: of the agents' durations; bar: from the first begin to the last end
";
/// More of them, if agents reported their times.
const LEGEND_OF_AGENTS: &str = "\
begin: spawn and contacts with the job description, a fence with the agent's last arrival,
run with the start of its last rank
";
/// The width of a terminal, if it is not known.
const COLUMNS: usize = 80;
/// The bounds of a bar's length.
const BAR_COLUMNS: (usize, usize) = (16, 60);

/// Returns the width of the terminal that `stream` is, or a usual one.
pub(crate) fn columns(stream: impl AsFd) -> usize {
    sys::terminal_columns(stream.as_fd()).unwrap_or(COLUMNS)
}

/// The times that the launcher records.
#[derive(Clone, Debug, Default)]
pub struct Phases {
    /// The arrivals of agents.
    pub arrivals: ArrivalTimes,
    /// The number of fences.
    fences: u32,
    /// The number and the duration of the slowest fence after the first, as seen by the launcher.
    slowest: Option<(u32, Duration)>,
    /// When all agents had joined, and when all had the session's files.
    staging: (Time, Option<Time>),
    /// The end of the session.
    end: Option<Time>,
}

/// A line of the table.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Row {
    /// The name of the phase.
    name: String,
    /// The time at which the last agent finished the phase.
    done: Time,
    /// The first agent's begin and the last agent's end.
    span: (Time, Time),
    /// The minimum, the approximate median and the maximum over the agents.
    took: Option<[Duration; 3]>,
    /// The hosts that finished last, with commas between them.
    last: String,
}

/// Looks up the hosts of targets and agents.
pub(crate) struct HostNames<'a> {
    /// Returns the host of a target.
    pub(crate) target: &'a dyn Fn(u32) -> String,
    /// The hosts of agents; `None` before agents have places in the tree.
    pub(crate) agents: Option<&'a RankLocations>,
}

impl Phases {
    /// Returns the phases of a session that ended before any rank was started.
    pub(crate) fn of_launch(arrivals: ArrivalTimes, end: Time) -> Self {
        Self { arrivals, end: Some(end), ..Self::default() }
    }

    /// Records a notice from the root at this time.
    pub fn on_notice(&mut self, at: Time, notice: &Notice) {
        match notice {
            Notice::Joined => self.staging.0 = at,
            Notice::Staged => self.staging.1 = Some(at),
            Notice::Released { namespace: NamespaceId::FIRST, number, took, .. } => {
                self.fences = self.fences.saturating_add(1);
                if *number > 0 && self.slowest.is_none_or(|(_, longest)| *took > longest) {
                    self.slowest = Some((*number, *took));
                }
            }
            // The agents, too, report the times of the last start.
            Notice::Restarted(_) => (self.fences, self.slowest) = (0, None),
            _ => {}
        }
    }

    /// Records the end of the session.
    pub fn on_end(&mut self, now: Time) {
        self.end = Some(now);
    }

    /// Returns the table of all phases that are over, for a terminal of this width. `timing` has the times of the agents
    /// that reported, out of `agents`.
    pub(crate) fn table(&self, timing: &Timing, agents: u32, names: &HostNames<'_>, columns: usize) -> String {
        let rows = self.rows(timing, names);
        let name_width = rows.iter().map(|row| row.name.len()).max().unwrap_or_default();
        let last_width = rows.iter().map(|row| row.last.len() + 2).max().filter(|width| *width > 2).unwrap_or_default();
        let mut text = format!("{:name_width$} {:>9} {:>9} {:>9} {:>9}", "", "done at", "min", "median", "max");
        let bar_width = columns.saturating_sub(text.len() + 2 + last_width).clamp(BAR_COLUMNS.0, BAR_COLUMNS.1);
        if last_width > 0 {
            let _ = write!(text, "  {:bar_width$}  last", "");
        }
        text.push('\n');
        let end = rows.iter().map(|row| row.span.1).max().unwrap_or_default();
        for Row { name, done, span, took, last } in &rows {
            let took = took.map_or_else(Default::default, |took| took.map(figures::time));
            let [min, median, max] = took;
            let bar = bar(*span, end, bar_width);
            let line = format!(
                "{name:name_width$} {:>9} {min:>9} {median:>9} {max:>9}  {bar:bar_width$}  {last}",
                figures::time(*done)
            );
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text.push_str(LEGEND);
        if !timing.phases.is_empty() {
            text.push_str(LEGEND_OF_AGENTS);
        }
        if timing.agents > 0 && timing.agents < agents {
            let _ = writeln!(text, "{} of {agents} agents reported their times", timing.agents);
        }
        text
    }

    /// Returns the lines of the table in the order of their ends. If some agent took part in too many fences to record each, all fences after the
    /// first share a line.
    fn rows(&self, timing: &Timing, names: &HostNames<'_>) -> Vec<Row> {
        let mut rows = Vec::new();
        let single = |name: &str, from, done| Row {
            name: name.to_owned(),
            done,
            span: (from, done),
            took: None,
            last: String::new(),
        };
        rows.push(single("plan", Time::ZERO, self.arrivals.began()));
        rows.extend(row("bootstrap", self.arrivals.bootstrap(), |agent| (names.target)(agent.0)));
        rows.extend(self.staging.1.map(|done| single("staging", self.staging.0, done)));
        rows.extend(row("join", self.arrivals.join(), |agent| (names.target)(agent.0)));
        let host = |agent: AgentId| names.agents.map_or_else(String::new, |agents| agents.of_agent(agent).to_owned());
        let few_fences = timing.phases.keys().all(|phase| *phase != TimedPhase::LaterFences);
        let mut later_fences = PhaseTimes::default();
        for (phase, times) in &timing.phases {
            let name = match phase {
                TimedPhase::Description => "job description".to_owned(),
                TimedPhase::Spawn => "spawn".to_owned(),
                TimedPhase::FirstContact => "first contact".to_owned(),
                TimedPhase::LastContact => "last contact".to_owned(),
                TimedPhase::Fence(number) if few_fences || *number == 0 => format!("fence {number}"),
                TimedPhase::Fence(_) => {
                    later_fences.merge(times);
                    continue;
                }
                TimedPhase::LaterFences => {
                    later_fences.merge(times);
                    let slowest = self.slowest.map_or_else(String::new, |(number, _)| format!(", slowest {number}"));
                    let name = format!("fences 1-{}{slowest}", self.fences.saturating_sub(1));
                    rows.extend(row(&name, &later_fences, host));
                    continue;
                }
                TimedPhase::Run => "run".to_owned(),
                TimedPhase::Teardown => "teardown".to_owned(),
            };
            rows.extend(row(&name, times, host));
        }
        rows.sort_by_key(|row| row.done);
        rows.extend(self.end.map(|done| single("end", done, done)));
        let hosts: BTreeSet<&str> = rows.iter().flat_map(|row| row.last.split(", ")).collect();
        if hosts.iter().filter(|host| !host.is_empty()).count() < 2 {
            // With a single host the column carries no information.
            rows.iter_mut().for_each(|row| row.last.clear());
        }
        rows
    }
}

/// Returns the line of a phase; `None` if no agent has finished the phase.
fn row(name: &str, times: &PhaseTimes, host: impl Fn(AgentId) -> String) -> Option<Row> {
    let took @ [min, _, max] = [times.took.min()?, times.took.median()?, times.took.max()?];
    let done = times.done()?;
    // At a fence, an agent is done when it arrives, and then waits for the release.
    let end = if name.starts_with("fence") { done + min } else { done };
    let mut last: Vec<String> = times.last.iter().map(|(agent, _)| host(*agent)).collect();
    last.dedup();
    let span = (end.saturating_sub(max), end);
    Some(Row { name: name.to_owned(), done, span, took: Some(took), last: last.join(", ") })
}

/// Returns a bar for a part of the time until `end`.
fn bar((from, to): (Time, Time), end: Time, width: usize) -> String {
    let column = |at: Time| (at.as_secs_f64() / end.as_secs_f64().max(f64::MIN_POSITIVE) * width as f64) as usize;
    let from = column(from).min(width - 1);
    let length = (column(to) - from.min(column(to))).max(1);
    format!("{:from$}{}", "", String::from(colour::BAR).repeat(length))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    fn times(all: &[(u32, u64, u64)]) -> PhaseTimes {
        let mut times = PhaseTimes::default();
        all.iter().for_each(|(agent, took, done)| times.note(AgentId(*agent), ms(*took), ms(*done)));
        times
    }

    fn released(number: u32, took: u64) -> Notice {
        Notice::Released { namespace: NamespaceId::FIRST, number, entries: 0, bytes: 0, took: ms(took) }
    }

    /// Three agents on hosts n1 to n3.
    fn started() -> Phases {
        let mut arrivals = ArrivalTimes::from(ms(2));
        for (target, now) in [(2, 102), (1, 152), (3, 302)] {
            arrivals.on_here(ms(now), target);
        }
        for (target, took) in [(2, 5), (1, 6), (3, 7)] {
            arrivals.on_joined(ms(305), target, ms(took));
        }
        Phases { arrivals, ..Phases::default() }
    }

    fn table(phases: &Phases, timing: &Timing) -> String {
        let host = |target: u32| format!("n{target}");
        let agents = [1, 2, 3].map(host).into();
        let locations = RankLocations::of_agents("front".into(), agents);
        phases.table(timing, 3, &HostNames { target: &host, agents: Some(&locations) }, 100)
    }

    #[test]
    fn few_fences_have_a_line_each() {
        let mut phases = started();
        [released(0, 9), released(1, 7)].iter().for_each(|notice| phases.on_notice(Time::ZERO, notice));
        phases.on_end(ms(12_000));
        let timing = Timing {
            agents: 3,
            phases: [
                (TimedPhase::Description, times(&[(1, 1, 314), (2, 3, 316), (3, 1, 314)])),
                (TimedPhase::Fence(0), times(&[(1, 1, 400), (2, 8, 393), (3, 3, 398)])),
                (TimedPhase::Fence(1), times(&[(1, 1, 500), (2, 8, 493), (3, 3, 498)])),
                (TimedPhase::Run, times(&[(1, 9_000, 9_400), (2, 9_100, 9_500), (3, 11_000, 11_400)])),
            ]
            .into(),
        };
        let expected = "
                  done at       min    median       max                                   last
plan              2.00 ms                                ━
bootstrap          302 ms    100 ms    147 ms    300 ms  ━                                n3, n1, n2
join               312 ms   5.00 ms   5.90 ms   7.00 ms  ━                                n3, n1, n2
job description    316 ms   1.00 ms   1.00 ms   3.00 ms  ━                                n2, n1, n3
fence 0            400 ms   1.00 ms   2.95 ms   8.00 ms   ━                               n1, n3, n2
fence 1            500 ms   1.00 ms   2.95 ms   8.00 ms   ━                               n1, n3, n2
run                11.4 s    9.00 s    9.00 s    11.0 s   ━━━━━━━━━━━━━━━━━━━━━━━━━━━━    n3, n2, n1
end                12.0 s                                                              ━
done at: when the last agent was done (fence: had arrived), since scela-run began
min, median, max: of the agents' durations; bar: from the first begin to the last end
begin: spawn and contacts with the job description, a fence with the agent's last arrival,
run with the start of its last rank
";
        assert_eq!(format!("\n{}", table(&phases, &timing)), expected);
    }

    #[test]
    fn fences_after_the_first_share_a_line_if_they_are_many() {
        let mut phases = started();
        (0..100).for_each(|number| phases.on_notice(Time::ZERO, &released(number, if number == 57 { 50 } else { 2 })));
        let fence = times(&[(1, 1, 400), (2, 1, 400), (3, 1, 400)]);
        let mut reported: std::collections::BTreeMap<_, _> =
            (0..8).map(|number| (TimedPhase::Fence(number), fence.clone())).collect();
        reported.insert(TimedPhase::LaterFences, times(&[(1, 1, 900), (1, 48, 500)]));
        let text = table(&phases, &Timing { agents: 2, phases: reported });
        let names: Vec<_> = text.lines().map(|line| line.split("  ").next().unwrap()).collect();
        let expected = [
            "",
            "plan",
            "bootstrap",
            "join",
            "fence 0",
            "fences 1-99, slowest 57",
            "done at: when the last agent was done (fence: had arrived), since scela-run began",
            "min, median, max: of the agents' durations; bar: from the first begin to the last end",
            "begin: spawn and contacts with the job description, a fence with the agent's last arrival,",
            "run with the start of its last rank",
            "2 of 3 agents reported their times",
        ];
        assert_eq!(names, expected);
        assert!(text.contains("   48.0 ms  ") && text.contains("━  n1, n2, n3\n"), "{text}");
    }

    #[test]
    fn a_single_host_is_not_named() {
        let names = HostNames { target: &|_| "laptop".to_owned(), agents: None };
        let text = started().table(&Timing::default(), 3, &names, 80);
        assert!(text.starts_with("            done at") && !text.contains("laptop"), "{text}");
    }

    #[test]
    fn phases_without_times_are_left_out() {
        assert_eq!(table(&Phases::default(), &Timing::default()).lines().count(), 4);
    }
}

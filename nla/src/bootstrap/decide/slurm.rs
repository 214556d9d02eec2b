//! The phrases of the command that starts a step of Slurm. `srun` writes its own errors, those of slurmd on the nodes,
//! and the ends of tasks to one stream of lines.

use super::failure::{StartFailure, StartPhase};

/// A line about some nodes of a step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::bootstrap) struct StepLine<'a> {
    /// The nodes, as a list: see [`is_in_list`]. Empty if the line names none.
    pub nodes: &'a str,
    /// Why these nodes have no agent.
    pub failure: StartFailure,
    /// The line only says that a task ended; another line may say why.
    pub is_end: bool,
    /// Slurm is about to end the step on all nodes.
    pub is_fatal: bool,
}

/// Parses a line about nodes; `None` for all others. The phrases are those of Slurm 22.05 and of the script that
/// becomes the agent.
pub(in crate::bootstrap) fn step_line(line: &str) -> Option<StepLine<'_>> {
    // scela: NODE: WHY
    if let Some((node, why)) = line.strip_prefix("scela: ").and_then(|rest| rest.split_once(": ")) {
        let phase = if why.contains(" cannot be reached") { StartPhase::ConnectBack } else { StartPhase::Program };
        return Some(StepLine { nodes: node, failure: StartFailure::new(phase, why), is_end: false, is_fatal: false });
    }
    let line = line.strip_prefix("srun: error: ")?;
    // step_launch_notify_io_failure: aborting, io error with slurmstepd on node 3
    if line.contains("aborting, io error with slurmstepd") {
        let failure = StartFailure::new(StartPhase::Step, line);
        return Some(StepLine { nodes: "", failure, is_end: false, is_fatal: true });
    }
    // Task launch for StepId=1.4 failed on node NODE: WHY
    if line.starts_with("Task launch for ") {
        let (nodes, why) = line.split_once(" failed on node ")?.1.split_once(": ")?;
        let failure = StartFailure::new(StartPhase::Step, format!("its slurmd did not start the agent: {why}"));
        return Some(StepLine { nodes, failure, is_end: false, is_fatal: true });
    }
    // NODES: task 3: WHY; NODES: tasks 0-2: WHY
    let (nodes, what) = line.split_once(": ")?;
    let (tasks, why) = what.split_once(": ")?;
    if !tasks.starts_with("task ") && !tasks.starts_with("tasks ") {
        return None;
    }
    let is_program = ["code 126", "code 127"].iter().any(|code| why.ends_with(code));
    let phase = if is_program { StartPhase::Program } else { StartPhase::Step };
    let failure = StartFailure::new(phase, format!("its agent exited before its first report: {why}"));
    Some(StepLine { nodes, failure, is_end: true, is_fatal: false })
}

/// Judges a step that ended, for nodes that no line was about: by the command's exit code and last lines.
pub(in crate::bootstrap) fn judge_step(code: Option<i32>, lines: &[String]) -> StartFailure {
    let fatal = lines.iter().find(|line| step_line(line).is_some_and(|about| about.is_fatal));
    let error = || lines.iter().rev().find(|line| line.contains("error: "));
    let words = match (fatal.or_else(error).or(lines.last()), code) {
        (Some(line), _) => line.rsplit_once("error: ").map_or(line.as_str(), |(_, words)| words).to_owned(),
        (None, Some(code)) => format!("the step ended with code {code} and nothing was said"),
        (None, None) => "the step was ended and nothing was said".to_owned(),
    };
    StartFailure::new(StartPhase::Step, words)
}

/// Returns whether `name` is in a list as Slurm writes it: `node[001-003,007],login`. Names with several brackets
/// are not supported.
pub(in crate::bootstrap) fn is_in_list(name: &str, list: &str) -> bool {
    let mut is_inside = false;
    let items = list.split(|c| {
        is_inside = c == '[' || is_inside && c != ']';
        c == ',' && !is_inside
    });
    items.into_iter().any(|item| item == name || is_in_brackets(name, item).unwrap_or(false))
}

fn is_in_brackets(name: &str, item: &str) -> Option<bool> {
    let (prefix, rest) = item.split_once('[')?;
    let (ranges, suffix) = rest.split_once(']')?;
    let digits = name.strip_prefix(prefix)?.strip_suffix(suffix)?;
    let number: u64 = digits.parse().ok()?;
    Some(ranges.split(',').any(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let bound = |text: &str| text.parse::<u64>().ok();
        let is_within =
            bound(first).is_some_and(|first| first <= number) && bound(last).is_some_and(|last| number <= last);
        // Numbers are padded with zeros to the width of the first; longer numbers have no padding.
        is_within && (digits.len() == first.len() || digits.len() > first.len() && !digits.starts_with('0'))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_about_nodes_are_parsed() {
        use StartPhase::*;
        for (line, nodes, phase, words, is_end, is_fatal) in [
            ("scela: n1: there is no /opt/scela-run", "n1", Program, "there is no /opt/scela-run", false, false),
            ("scela: n1: no place: there is no it, and", "n1", Program, "no place: there is no it, and", false, false),
            (
                "scela: n1: the launcher cannot be reached (10.0.0.1:1: refused)",
                "n1",
                ConnectBack,
                "the launcher cannot be reached (10.0.0.1:1: refused)",
                false,
                false,
            ),
            (
                "srun: error: Task launch for StepId=1.4 failed on node n3: Communication connection failure",
                "n3",
                Step,
                "its slurmd did not start the agent: Communication connection failure",
                false,
                true,
            ),
            (
                "srun: error: step_launch_notify_io_failure: aborting, io error with slurmstepd on node 3",
                "",
                Step,
                "step_launch_notify_io_failure: aborting, io error with slurmstepd on node 3",
                false,
                true,
            ),
            (
                "srun: error: n[1-2]: tasks 0-1: Exited with exit code 126",
                "n[1-2]",
                Program,
                "its agent exited before its first report: Exited with exit code 126",
                true,
                false,
            ),
        ] {
            let failure = StartFailure::new(phase, words);
            assert_eq!(step_line(line), Some(StepLine { nodes, failure, is_end, is_fatal }), "{line}");
        }
        for line in [
            "srun: error: Application launch failed: Communication connection failure",
            "srun: error: Unable to create step for job 1: Required node not available (down, drained or reserved)",
            "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.",
            "Welcome: to: the cluster",
            "",
        ] {
            assert_eq!(step_line(line), None, "{line}");
        }
    }

    #[test]
    fn the_last_error_of_a_step_is_its_reason() {
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        let said = "srun: error: Unable to create step for job 1: Invalid job id specified\nsrun: bye";
        let words = |failure: StartFailure| failure.words;
        assert_eq!(
            words(judge_step(Some(1), &lines(said))),
            "Unable to create step for job 1: Invalid job id specified"
        );
        assert_eq!(words(judge_step(Some(1), &lines("out of luck"))), "out of luck");
        let reset = "srun: error: f: aborting, io error with slurmstepd on node 3\nsrun: error: n1: task 0: Killed";
        assert_eq!(words(judge_step(Some(137), &lines(reset))), "f: aborting, io error with slurmstepd on node 3");
        assert_eq!(words(judge_step(Some(3), &[])), "the step ended with code 3 and nothing was said");
    }

    #[test]
    fn names_are_found_in_lists() {
        for (name, list, is_in) in [
            ("n1", "n1", true),
            ("n1", "n2,n1", true),
            ("n1", "n11", false),
            ("n002", "a,n[001-003,007],b", true),
            ("n007", "n[001-003,007]", true),
            ("n7", "n[001-003,007]", false),
            ("n004", "n[001-003,007]", false),
            ("b", "a,n[001-003,007],b", true),
            ("n100", "n[98-101]", true),
            ("n-ib", "n[1-2]-ib", false),
            ("n2-ib", "n[1-2]-ib", true),
            ("n1", "n[", false),
            ("", "", true),
        ] {
            assert_eq!(is_in_list(name, list), is_in, "{name} in {list}");
        }
    }
}

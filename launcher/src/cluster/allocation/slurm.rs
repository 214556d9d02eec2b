//! Slurm: `SLURM_JOB_ID`, `SLURM_JOB_NODELIST`, and the numbers for each node as `16(x3),8`.
//!
//! A step, such as a shell started with `srun`, has the job's node list and the job's processors, but its own
//! tasks, mostly one. They are not the job's: most of the job would stay unused, or the list would be shorter than
//! the node list. Seen with Slurm 22.05; the interactive step of `salloc` has the job's tasks.

use nla::core::{GPU, Resources};
use nla::figures::counted;

use super::{Allocation, count, count_in, id, missing, names_in, nodes_of, not, unreadable};
use crate::cluster::hosts::HOSTS_MAX;
use crate::cluster::manager::Manager;
use crate::cluster::node::Node;
use crate::cluster::system::System;
use crate::refusal::Refusal;

pub(super) const SIGN: &str = "SLURM_JOB_ID";

/// The variables with the node list. Versions before 2 set the second one.
const NAMES: [&str; 2] = ["SLURM_JOB_NODELIST", "SLURM_NODELIST"];
/// Tasks of each node, as the user requested or as Slurm derived them from processors. Slurm has already divided
/// them by the processors of each task.
const TASKS: &str = "SLURM_TASKS_PER_NODE";
const PROCESSORS: &str = "SLURM_JOB_CPUS_PER_NODE";
const PROCESSORS_PER_TASK: &str = "SLURM_CPUS_PER_TASK";
/// Set only if the user gave a number.
const RANKS: &str = "SLURM_NTASKS";
/// The graphics processors of each node, as the user requested: `4` or `a100:4`. It is set only for `--gpus-per-node`. The
/// other variables about devices are about the node of the batch script, or about all nodes together.
const GPUS: &str = "SLURM_GPUS_PER_NODE";
/// The number of the step that `salloc` opens if the site sets `use_interactive_step`. This step has the job's
/// tasks.
const INTERACTIVE_STEP: &str = "4294967290";

pub(super) fn find(system: &dyn System) -> Result<Option<Allocation>, Refusal> {
    let Some(job) = system.variable(SIGN).or_else(|| system.variable("SLURM_JOBID")) else {
        return Ok(None);
    };
    let found = NAMES.into_iter().find_map(|name| Some((name, system.variable(name)?)));
    let (found_by, list) = found.ok_or_else(|| missing(Manager::Slurm, SIGN, NAMES[0]))?;
    let names = names_in(found_by, list.as_encoded_bytes())?;
    let step = system.variable("SLURM_STEP_ID");
    let is_of_step = step.is_some_and(|step| step != INTERACTIVE_STEP);
    let slots = if is_of_step { None } else { by_tasks(found_by, names.len(), system)? };
    let slots = match slots {
        Some(slots) => slots.into_iter().map(Some).collect(),
        None => by_processors(found_by, names.len(), system)?,
    };
    let ranks = if is_of_step { None } else { count_in(RANKS, system)? };
    let entry = |(name, slots): (String, _)| Node { slots, ..Node::named(name) };
    let nodes = nodes_of(names.into_iter().zip(slots).map(entry).collect());
    Ok(Some(Allocation { manager: Manager::Slurm, id: id(job), nodes, ranks, found_by }))
}

/// Returns the devices of each node; none if they are unknown, also if the text has another form.
pub(super) fn devices_of_each(system: &dyn System) -> Resources {
    let value = system.variable(GPUS).unwrap_or_default();
    let items: Vec<String> = value.to_string_lossy().split(',').map(|item| format!("{GPU}:{item}")).collect();
    items.join(",").parse().unwrap_or_default()
}

/// Returns the tasks of each node, if they are set.
fn by_tasks(found_by: &str, named: usize, system: &dyn System) -> Result<Option<Vec<u32>>, Refusal> {
    match numbers(TASKS, system)? {
        Some(tasks) if tasks.len() != named => Err(disagree(TASKS, tasks.len(), found_by, named)),
        tasks => Ok(tasks),
    }
}

/// Returns the number of tasks of each node: its processors divided by those per task; `None` if it is unknown.
fn by_processors(found_by: &str, named: usize, system: &dyn System) -> Result<Vec<Option<u32>>, Refusal> {
    let Some(processors) = numbers(PROCESSORS, system)? else { return Ok(vec![None; named]) };
    if processors.len() != named {
        return Err(disagree(PROCESSORS, processors.len(), found_by, named));
    }
    let each = count_in(PROCESSORS_PER_TASK, system)?.unwrap_or(1);
    Ok(processors.into_iter().map(|processors| Some((processors / each).max(1))).collect())
}

fn disagree(variable: &str, nodes: usize, names: &str, named: usize) -> Refusal {
    let nodes = counted(nodes as u64, "node");
    unreadable(format!("{variable} is about {nodes}, and {names} names {named}"))
}

/// Parses a variable such as `16(x3),8`, if it is set: a number for each node.
fn numbers(variable: &str, system: &dyn System) -> Result<Option<Vec<u32>>, Refusal> {
    let Some(value) = system.variable(variable) else { return Ok(None) };
    let value = value.to_string_lossy();
    expanded(&value).map(Some).ok_or_else(|| not(variable, &value, "a list of numbers like 16(x3),8"))
}

fn expanded(text: &str) -> Option<Vec<u32>> {
    let mut numbers = Vec::new();
    for item in text.split(',') {
        let (number, times) = match item.split_once("(x") {
            Some((number, times)) => (number, count(times.strip_suffix(')')?)?),
            None => (item, 1),
        };
        let times = times as usize;
        if times > HOSTS_MAX - numbers.len() {
            return None;
        }
        numbers.extend(std::iter::repeat_n(count(number)?, times));
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_for_each_node() {
        assert_eq!(expanded("16(x3),8"), Some(vec![16, 16, 16, 8]));
        assert_eq!(expanded("1"), Some(vec![1]));
        for text in ["", "x", "1,", "1(x)", "1(x2", "1(2)", "0", "1(x0)", "1(x4294967295)", "1(x1048577)", "-1"] {
            assert_eq!(expanded(text), None, "{text}");
        }
        assert_eq!(expanded("1(x1048576)").map(|numbers| numbers.len()), Some(HOSTS_MAX));
        assert_eq!(expanded("1(x1048576),1"), None);
    }
}

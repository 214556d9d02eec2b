//! `--explain`: formats the whole plan as text and starts nothing. [`explained`] collects the values, and [`explain`]
//! formats them.

mod binding;
mod picture;
mod planned;

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use nla::figures::counted;

pub use self::planned::explained;
use crate::cluster::hosts::{fold, fold_within};
use crate::forecast::model::{Prediction, Recommendation};
use crate::plan::remote_launch::Shape;

/// The values of a plan that `--explain` prints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explained {
    /// The hosts with ranks, grouped by size, in the order of their first ranks.
    pub hosts: Vec<HostGroup>,
    /// The hosts that replace hosts that fail to start.
    pub spares: Vec<String>,
    /// The tree of agents.
    pub tree: Tree,
    /// The method that starts agents.
    pub bootstrap: Bootstrap,
    /// The lines about a mapping by traffic; empty if ranks are placed otherwise.
    pub talked: Vec<String>,
    /// The lines about the processors and memory of ranks; empty if they are not bound.
    pub binding: Vec<String>,
    /// The ranks' environments: one for each command, or a single one if all are equal.
    pub environments: Vec<Environment>,
    /// The predicted time of each launch strategy.
    pub predicted: Vec<Prediction>,
    /// The name of the prediction that applies to this plan, if one does.
    pub planned: Option<&'static str>,
    /// Whether the model's constants were measured.
    pub measured: bool,
    /// Why programs cannot be run on this machine, each with a hint if the ranks run here.
    pub missing: Vec<String>,
    /// The model's recommendation.
    pub recommended: Recommendation,
}

/// Hosts with the same number of ranks and the same number of agents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostGroup {
    /// The names of the hosts.
    pub names: Vec<String>,
    /// The number of ranks on each host.
    pub ranks: u32,
    /// The number of agents on each host.
    pub agents: u32,
}

/// The tree of agents, from the launcher down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    /// Its shape, by the name that `--launch` uses.
    pub shape: &'static str,
    /// The most children of an agent.
    pub fanout: u32,
    /// The number of remote shells that one process opens at a time; `None` if it is adaptive.
    pub batch: Option<u32>,
    /// The fan-out of links and its reason: a fragment. Empty if they follow the remote shells.
    pub links: String,
    /// Whether links go over the remote shells that start the agents.
    pub has_shell_links: bool,
    /// Whether all agents are on this machine, where no remote shell is needed.
    pub is_local: bool,
    /// The levels below the launcher.
    pub levels: Vec<Level>,
    /// The lines of a picture of the links between agents.
    pub picture: Vec<String>,
}

/// One level of the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Level {
    /// The hosts of the agents that start this level. Empty if the launcher starts it.
    pub by: Vec<String>,
    /// The hosts of this level's agents.
    pub starts: Vec<String>,
    /// The most remote shells, or local agents, that one process of the level above starts.
    pub shells_max: u32,
}

/// The method that starts agents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bootstrap {
    /// Its name, which `--bootstrap` takes.
    pub name: String,
    /// Why this method is used: a fragment.
    pub why: String,
    /// The hosts that `command` is for.
    pub hosts: Vec<String>,
    /// The exact words of the command. A script at its end is replaced by `...`.
    pub command: Vec<OsString>,
    /// How the commands for other hosts differ: a fragment. `None` if `command` is for all hosts.
    pub others: Option<String>,
}

/// The environment of ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Environment {
    /// The program that it is for; `None` if it is for all programs.
    pub program: Option<OsString>,
    /// The variables that ranks inherit from the launcher: a fragment such as "all of yours".
    pub inherited: String,
    /// The names, or patterns of names, of variables that they do not inherit.
    pub removed: Vec<String>,
    /// The variables that are set, in order.
    pub set: Vec<(OsString, OsString)>,
}

/// Returns the text of `--explain`, with a newline at its end.
pub fn explain(explained: &Explained) -> String {
    let Explained {
        hosts,
        spares,
        tree,
        bootstrap,
        talked,
        binding,
        environments,
        predicted,
        planned,
        measured,
        recommended,
        missing,
    } = explained;
    let this_plan = predicted.iter().find(|prediction| *planned == Some(prediction.name));
    let mut sections = vec![hosts_section(hosts, spares)];
    sections.extend(
        Some(lines_section("placement by what ranks send to each other:", talked)).filter(|_| !talked.is_empty()),
    );
    sections.extend([tree_section(tree), bootstrap_section(bootstrap)]);
    sections.extend(Some(lines_section("binding of ranks:", binding)).filter(|_| !binding.is_empty()));
    sections.extend(environments.iter().map(environment_section));
    sections.push(match tree.is_local {
        true => local_prediction_section(predicted, *planned),
        false => {
            predictions_section(predicted, *planned, *measured) + &recommendation_line(recommended, tree, this_plan)
        }
    });
    sections.push(checks_section(missing, tree.is_local));
    sections.join("\n")
}

fn hosts_section(hosts: &[HostGroup], spares: &[String]) -> String {
    let sum = |each: fn(&HostGroup) -> u32| -> u64 {
        hosts.iter().map(|group| group.names.len() as u64 * u64::from(each(group))).sum()
    };
    let count: usize = hosts.iter().map(|group| group.names.len()).sum();
    let mut text = format!(
        "job: {} on {}, {}\n",
        counted(sum(|group| group.ranks), "rank"),
        counted(count as u64, "host"),
        counted(sum(|group| group.agents), "agent"),
    );
    for HostGroup { names, ranks, agents } in hosts {
        let each = if names.len() > 1 { " on each" } else { "" };
        let by = if *agents > 1 { format!(" by {agents} agents") } else { String::new() };
        line(&mut text, format_args!("{}: {}{by}{each}", fold(names), counted(u64::from(*ranks), "rank")));
    }
    if !spares.is_empty() {
        line(&mut text, format_args!("{}: kept for hosts that fail", fold(spares)));
    }
    text
}

/// Bytes of the names in one line of a section; more names are counted.
const NAMES_BYTES_MAX: usize = 200;

fn tree_section(tree: &Tree) -> String {
    let Tree { shape, fanout, batch, links, has_shell_links, is_local, levels, picture } = tree;
    let depth = counted(levels.len() as u64, "level");
    let shape = if *is_local { "on this machine" } else { shape };
    let mut text = format!("launch: {shape}, fan-out {fanout}, {depth}");
    match batch {
        _ if *is_local => {}
        Some(batch) => text.push_str(&format!(", {} at a time", counted(u64::from(*batch), "remote shell"))),
        None => text.push_str(", number of remote shells at a time: adaptive"),
    }
    text.push('\n');
    if *is_local {
        picture.iter().for_each(|drawn| line(&mut text, format_args!("{drawn}")));
        return text;
    }
    for (at, Level { by, starts, shells_max }) in levels.iter().enumerate() {
        let shells = counted(u64::from(*shells_max), "remote shell");
        let (by, shells) = match by.len() {
            0 => ("scela-run starts".to_owned(), shells),
            1 => (format!("{} starts", fold_within(by, NAMES_BYTES_MAX)), shells),
            _ => (format!("{} start", fold_within(by, NAMES_BYTES_MAX)), format!("{shells} each at most")),
        };
        line(&mut text, format_args!("level {}: {by} {} ({shells})", at + 1, fold_within(starts, NAMES_BYTES_MAX)));
    }
    if *has_shell_links {
        line(&mut text, format_args!("links go over these remote shells; no process listens on a port"));
    }
    line(&mut text, format_args!("links between agents{links}:"));
    picture.iter().for_each(|drawn| line(&mut text, format_args!("  {drawn}")));
    text
}

fn bootstrap_section(bootstrap: &Bootstrap) -> String {
    let Bootstrap { name, why, hosts, command, others } = bootstrap;
    let words: Vec<_> = command.iter().map(|word| quoted(word)).collect();
    let mut text = format!("bootstrap: {name}, {why}\n");
    line(&mut text, format_args!("for {}: {}", fold_within(hosts, NAMES_BYTES_MAX), words.join(" ")));
    if let Some(others) = others {
        line(&mut text, format_args!("for other hosts: {others}"));
    }
    text
}

fn lines_section(title: &str, lines: &[String]) -> String {
    let mut text = format!("{title}\n");
    lines.iter().for_each(|one| line(&mut text, format_args!("{one}")));
    text
}

fn environment_section(environment: &Environment) -> String {
    let Environment { program, inherited, removed, set } = environment;
    let of = program.as_ref().map_or_else(|| "ranks".to_owned(), |program| quoted(program));
    let mut text = format!("environment of {of}: {inherited}\n");
    for name in removed {
        line(&mut text, format_args!("without {}", quoted(OsStr::new(name))));
    }
    for (name, value) in set {
        line(&mut text, format_args!("{}={}", quoted(name), quoted(value)));
    }
    text
}

fn predictions_section(predicted: &[Prediction], planned: Option<&str>, measured: bool) -> String {
    let constants = match measured {
        true => "constants that --calibrate measured",
        false => "typical constants; 'scela-run --calibrate LIST' measures those of your hosts",
    };
    let mut text = format!("predicted time to start: with {constants}\n");
    line(&mut text, format_args!("{:<20} {:>12} {:>12}", "", "published", "scela-run"));
    for Prediction { name, published, own } in predicted {
        let this = if planned == Some(*name) { "  (this plan)" } else { "" };
        line(&mut text, format_args!("{name:<20} {:>12} {:>12}{this}", seconds(*published), seconds(*own)));
    }
    line(&mut text, format_args!("published: by the equations of Charm++'s start-up (Gupta, Zheng, Kal\u{e9} 2011)"));
    line(&mut text, format_args!("scela-run: by a model of this program; docs/clusters.md describes both"));
    text
}

/// Formats the prediction for this machine alone, where all strategies start the same processes.
fn local_prediction_section(predicted: &[Prediction], planned: Option<&str>) -> String {
    let this = predicted.iter().find(|prediction| planned == Some(prediction.name));
    this.map_or_else(String::new, |this| {
        format!("predicted time to start: {}, with typical constants\n", seconds(this.own))
    })
}

/// Returns the recommendation, or nothing if this plan takes no longer. Never recommends a `--fanout`: it would also be the fan-out
/// of links, for which the model may prefer another one. Without it, the model chooses both.
fn recommendation_line(recommended: &Recommendation, tree: &Tree, this_plan: Option<&Prediction>) -> String {
    let Recommendation { shape, fanout, batch, time, .. } = recommended;
    let recommended_time = seconds(*time);
    if this_plan.is_some_and(|this| this.own <= *time || seconds(this.own) == recommended_time) {
        return String::new();
    }
    let is_other_fanout = *shape == Shape::Tree && tree.shape == shape.name() && tree.fanout != *fanout;
    let without = if is_other_fanout { " without --fanout" } else { "" };
    format!("recommended: --launch {} --batch {batch}{without}, which takes {recommended_time}\n", shape.name())
}

fn checks_section(missing: &[String], is_local: bool) -> String {
    let mut text = "nothing was started".to_owned();
    if !is_local {
        text.push_str("; whether the hosts answer, and have the programs, was not checked");
    }
    text.push('\n');
    for why in missing.iter().filter(|_| !is_local) {
        line(&mut text, format_args!("on this machine, {why}"));
    }
    text
}

fn line(text: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "  {line}");
}

/// Formats a time to the millisecond, or to the tenth of a second from 100 s on.
fn seconds(time: Duration) -> String {
    let digits = if time < Duration::from_secs(100) { 3 } else { 1 };
    format!("{:.digits$} s", time.as_secs_f64())
}

/// Quotes a word for a shell if it needs quotes. Uses the escapes of bash, ksh and zsh for control characters and
/// invalid UTF-8.
fn quoted(word: &OsStr) -> String {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"%+,-./:=@_".contains(byte);
    match word.to_str() {
        Some(text) if !text.is_empty() && text.bytes().all(|byte| is_plain(&byte)) => text.to_owned(),
        Some(text) if !text.contains(char::is_control) => format!("'{}'", text.replace('\'', "'\\''")),
        _ => format!("$'{}'", word.as_bytes().iter().map(|byte| escaped(*byte)).collect::<String>()),
    }
}

/// Returns the text of a byte between `$'` and `'`.
fn escaped(byte: u8) -> String {
    match byte {
        b'\'' | b'\\' => format!("\\{}", char::from(byte)),
        b'\n' => "\\n".to_owned(),
        b'\t' => "\\t".to_owned(),
        b' '..=b'~' => char::from(byte).to_string(),
        _ => format!("\\{byte:03o}"),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;
    use crate::forecast::model::{Constants, Size, predict, recommend};

    fn names(text: &str) -> Vec<String> {
        crate::cluster::hosts::expand(text.as_bytes()).expect("a list of names")
    }

    fn words(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    /// Returns a plan for 32 hosts over ssh with all kinds of values.
    fn plan_over_ssh() -> Explained {
        let constants = Constants { shells_max: 6, ..Constants::default() };
        Explained {
            hosts: vec![
                HostGroup { names: names("node[001-031]"), ranks: 16, agents: 1 },
                HostGroup { names: names("big"), ranks: 32, agents: 2 },
            ],
            spares: names("node[040-041]"),
            tree: Tree {
                shape: "tree",
                fanout: 8,
                batch: Some(6),
                links: ", fan-out 4 as typed".to_owned(),
                has_shell_links: true,
                is_local: false,
                levels: vec![
                    Level { by: Vec::new(), starts: names("node[001-008]"), shells_max: 8 },
                    Level { by: names("node[001-008]"), starts: names("node[009-031],big"), shells_max: 3 },
                ],
                picture: vec!["scela-run ─── node001".to_owned(), "second line".to_owned()],
            },
            bootstrap: Bootstrap {
                name: "ssh".to_owned(),
                why: "as there is no allocation".to_owned(),
                hosts: vec!["node001".to_owned()],
                command: [words("ssh -T -x -o BatchMode=yes node001"), vec!["exec '/opt/my dir/scela-run'".into()]]
                    .concat(),
                others: Some("the same with their names".to_owned()),
            },
            talked: Vec::new(),
            binding: Vec::new(),
            environments: vec![
                Environment {
                    program: Some("./head".into()),
                    inherited: "all of yours".to_owned(),
                    removed: vec!["HOSTNAME".to_owned(), "SSH_*".to_owned()],
                    set: vec![("OMP_NUM_THREADS".into(), "2".into()), ("MSG".into(), "a b".into())],
                },
                Environment {
                    program: Some("./tail".into()),
                    inherited: "nothing of yours".to_owned(),
                    removed: Vec::new(),
                    set: Vec::new(),
                },
            ],
            predicted: predict(Size { nodes: 32, ppn: 16 }, 8, 6, &constants),
            planned: Some("tree, batched"),
            measured: false,
            missing: vec!["program './tail' was not found".to_owned()],
            recommended: recommend(32, 16, &constants),
        }
    }

    #[test]
    fn a_plan_for_a_cluster_over_ssh_is_explained() {
        let expected = "\
job: 528 ranks on 32 hosts, 33 agents
  node[001-031]: 16 ranks on each
  big: 32 ranks by 2 agents
  node[040-041]: kept for hosts that fail

launch: tree, fan-out 8, 2 levels, 6 remote shells at a time
  level 1: scela-run starts node[001-008] (8 remote shells)
  level 2: node[001-008] start big,node[009-031] (3 remote shells each at most)
  links go over these remote shells; no process listens on a port
  links between agents, fan-out 4 as typed:
    scela-run ─── node001
    second line

bootstrap: ssh, as there is no allocation
  for node001: ssh -T -x -o BatchMode=yes node001 'exec '\\''/opt/my dir/scela-run'\\'''
  for other hosts: the same with their names

environment of ./head: all of yours
  without HOSTNAME
  without 'SSH_*'
  OMP_NUM_THREADS=2
  MSG='a b'

environment of ./tail: nothing of yours

predicted time to start: with typical constants; 'scela-run --calibrate LIST' measures those of your hosts
                          published    scela-run
  linear                   10.574 s     17.201 s
  flat (SMP-aware)          0.984 s      1.212 s
  tree (multi-level)        0.805 s      0.432 s
  tree, batched             0.781 s      0.612 s  (this plan)
  published: by the equations of Charm++'s start-up (Gupta, Zheng, Kalé 2011)
  scela-run: by a model of this program; docs/clusters.md describes both
recommended: --launch tree --batch 6 without --fanout, which takes 0.427 s

nothing was started; whether the hosts answer, and have the programs, was not checked
  on this machine, program './tail' was not found
";
        assert_eq!(explain(&plan_over_ssh()), expected);
    }

    #[test]
    fn a_plan_that_takes_no_longer_than_the_recommended_one_stays() {
        let mut explained = plan_over_ssh();
        let line = |explained: &Explained| {
            let text = explain(explained);
            text.lines().find(|line| line.starts_with("recommended")).map(str::to_owned)
        };
        assert!(line(&explained).is_some());
        explained.tree.shape = "flat";
        let flat = "recommended: --launch tree --batch 6, which takes 0.427 s";
        assert_eq!(line(&explained).as_deref(), Some(flat), "the fan-out is that of links");
        let planned = explained.predicted.iter_mut().find(|prediction| prediction.name == "tree, batched").unwrap();
        planned.own = explained.recommended.time + Duration::from_micros(10);
        assert_eq!(line(&explained), None);
    }

    #[test]
    fn a_plan_for_one_machine_is_explained() {
        let constants = Constants { measured: true, ..Constants::default() };
        let size = Size { nodes: 1, ppn: 1 };
        let explained = Explained {
            hosts: vec![HostGroup { names: names("laptop"), ranks: 1, agents: 1 }],
            spares: Vec::new(),
            tree: Tree {
                shape: "flat",
                fanout: 32,
                batch: None,
                links: String::new(),
                has_shell_links: false,
                is_local: true,
                levels: vec![Level { by: Vec::new(), starts: names("agent1"), shells_max: 1 }],
                picture: vec!["scela-run ─── agent1".to_owned()],
            },
            bootstrap: Bootstrap {
                name: "fork".to_owned(),
                why: "as all ranks are on this machine".to_owned(),
                hosts: vec!["laptop".to_owned()],
                command: words("/usr/bin/scela-run"),
                others: None,
            },
            talked: Vec::new(),
            binding: Vec::new(),
            environments: vec![Environment {
                program: None,
                inherited: "all of yours".to_owned(),
                removed: Vec::new(),
                set: Vec::new(),
            }],
            predicted: predict(size, 2, 1, &constants),
            planned: Some("flat (SMP-aware)"),
            measured: true,
            missing: Vec::new(),
            recommended: recommend(1, 1, &constants),
        };
        let expected = "\
job: 1 rank on 1 host, 1 agent
  laptop: 1 rank

launch: on this machine, fan-out 32, 1 level
  scela-run ─── agent1

bootstrap: fork, as all ranks are on this machine
  for laptop: /usr/bin/scela-run

environment of ranks: all of yours

predicted time to start: 0.201 s, with typical constants

nothing was started
";
        assert_eq!(explain(&explained), expected);
    }

    #[test]
    fn words_are_quoted_for_a_shell() {
        for (word, expected) in [
            (&b"-o"[..], "-o"),
            (b"a=b,c", "a=b,c"),
            (b"", "''"),
            (b"a b", "'a b'"),
            (b"it's", r"'it'\''s'"),
            (b"$HOME*", "'$HOME*'"),
            (b"{a,b}", "'{a,b}'"),
            ("süd".as_bytes(), "'süd'"),
            (b"~", "'~'"),
            (b"\x1b[2J", r"$'\033[2J'"),
            (b"a'\\\n\t\xff", r"$'a\'\\\n\t\377'"),
        ] {
            assert_eq!(quoted(&OsString::from_vec(word.to_vec())), expected);
        }
    }

    #[test]
    fn times_of_100_seconds_have_fewer_digits() {
        let text = |ms| seconds(Duration::from_millis(ms));
        assert_eq!([text(0), text(4398), text(99_999), text(113_640)], ["0.000 s", "4.398 s", "99.999 s", "113.6 s"]);
    }
}

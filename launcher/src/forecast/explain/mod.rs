//! `--explain`: the whole plan as text, before anything is started. A pure function of [`Explained`],
//! which [`explained`] fills in.

mod planned;

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

pub use self::planned::explained;
use crate::cluster::hosts::fold;
use crate::forecast::model::{Prediction, Recommendation};
use crate::plan::remote_launch::Shape;

/// A plan, as it is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explained {
    /// Hosts with ranks, those together that are alike, in the order of their first ranks.
    pub hosts: Vec<Alike>,
    /// Hosts that are kept for those that fail.
    pub spares: Vec<String>,
    /// Who starts whom.
    pub tree: Tree,
    /// How agents are started.
    pub bootstrap: Bootstrap,
    /// What ranks get as their environment; one for each command, or one for all that are alike.
    pub environments: Vec<Environment>,
    /// How long each way to start would take.
    pub predicted: Vec<Prediction>,
    /// Which of these the plan is, by its name; none if it is none of them.
    pub planned: Option<&'static str>,
    /// Whether the model's constants were measured.
    pub measured: bool,
    /// The programs that cannot be run on this machine.
    pub missing: Vec<OsString>,
    /// What the model would do.
    pub recommended: Recommendation,
}

/// Hosts with as many ranks and agents each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alike {
    /// Their names.
    pub names: Vec<String>,
    /// Ranks on each.
    pub ranks: u32,
    /// Agents on each.
    pub agents: u32,
}

/// The tree of agents, from the launcher down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    /// Its shape, as `--launch` calls it.
    pub shape: &'static str,
    /// The most children.
    pub fanout: u32,
    /// Sessions at a time; none if that adapts itself.
    pub batch: Option<u32>,
    /// Whether links go over the remote shells that start the agents.
    pub has_shell_links: bool,
    /// Whether all agents are on this machine, where no remote shell is needed.
    pub is_local: bool,
    /// The levels below the launcher; as many as the tree is deep.
    pub levels: Vec<Level>,
}

/// Who starts one level.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Level {
    /// The hosts of those who start it; none for the launcher.
    pub by: Vec<String>,
    /// The hosts on which they start agents.
    pub starts: Vec<String>,
    /// How many sessions the busiest of them opens.
    pub sessions_most: u32,
}

/// How agents are started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bootstrap {
    /// Its name, as `--bootstrap` calls it.
    pub name: String,
    /// Why this one: a fragment.
    pub why: String,
    /// The hosts that the command is for.
    pub hosts: Vec<String>,
    /// The command's words, to the byte; those of a script that follows them are `...`.
    pub command: Vec<OsString>,
    /// How those of other hosts differ, a fragment; none if there are no others.
    pub others: Option<String>,
}

/// What ranks get as their environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Environment {
    /// The program that it is for; none for all of them.
    pub program: Option<OsString>,
    /// What they inherit of the launcher's: a fragment such as "all of yours".
    pub inherited: String,
    /// Names, or patterns of names, that they do not inherit.
    pub removed: Vec<String>,
    /// What is set, in this order.
    pub set: Vec<(OsString, OsString)>,
}

/// The text of `--explain`, with the end of its last line.
pub fn explain(explained: &Explained) -> String {
    let Explained { hosts, spares, tree, bootstrap, environments, predicted, planned, measured, recommended, missing } =
        explained;
    let mut sections = vec![of_hosts(hosts, spares), of_tree(tree), of_bootstrap(bootstrap)];
    sections.extend(environments.iter().map(of_environment));
    sections.push(match tree.is_local {
        true => of_local_time(predicted, *planned),
        false => of_times(predicted, *planned, *measured) + &of_recommendation(recommended),
    });
    sections.push(of_checks(missing, tree.is_local));
    sections.join("\n")
}

fn of_hosts(hosts: &[Alike], spares: &[String]) -> String {
    let sum = |each: fn(&Alike) -> u32| -> u64 {
        hosts.iter().map(|alike| alike.names.len() as u64 * u64::from(each(alike))).sum()
    };
    let count: usize = hosts.iter().map(|alike| alike.names.len()).sum();
    let mut text = format!(
        "{} on {}, {}\n",
        counted(sum(|alike| alike.ranks), "rank"),
        counted(count as u64, "host"),
        counted(sum(|alike| alike.agents), "agent"),
    );
    for Alike { names, ranks, agents } in hosts {
        let each = if names.len() > 1 { " on each" } else { "" };
        let by = if *agents > 1 { format!(" by {agents} agents") } else { String::new() };
        line(&mut text, format_args!("{}: {}{by}{each}", fold(names), counted(u64::from(*ranks), "rank")));
    }
    if !spares.is_empty() {
        line(&mut text, format_args!("{}: kept for hosts that fail", fold(spares)));
    }
    text
}

fn of_tree(tree: &Tree) -> String {
    let Tree { shape, fanout, batch, has_shell_links, is_local, levels } = tree;
    let depth = counted(levels.len() as u64, "level");
    let mut text = format!("launch: {shape}, fan-out {fanout}, {depth}");
    match batch {
        _ if *is_local => {}
        Some(batch) => text.push_str(&format!(", {} at a time", counted(u64::from(*batch), "remote shell"))),
        None => text.push_str(", number of remote shells at a time: adaptive"),
    }
    text.push('\n');
    let what = if *is_local { "agent" } else { "remote shell" };
    for (at, Level { by, starts, sessions_most }) in levels.iter().enumerate() {
        let sessions = counted(u64::from(*sessions_most), what);
        let on = if *is_local { "agents on " } else { "" };
        let (by, sessions) = match by.len() {
            0 => ("scela-run starts".to_owned(), sessions),
            1 => (format!("{} starts", fold(by)), sessions),
            _ => (format!("{} start", fold(by)), format!("{sessions} each at most")),
        };
        line(&mut text, format_args!("level {}: {by} {on}{} ({sessions})", at + 1, fold(starts)));
    }
    if *has_shell_links {
        line(&mut text, format_args!("links go over these remote shells; no process listens on a port"));
    }
    text
}

fn of_bootstrap(bootstrap: &Bootstrap) -> String {
    let Bootstrap { name, why, hosts, command, others } = bootstrap;
    let words: Vec<_> = command.iter().map(|word| quoted(word)).collect();
    let mut text = format!("bootstrap: {name}, {why}\n");
    line(&mut text, format_args!("for {}: {}", fold(hosts), words.join(" ")));
    if let Some(others) = others {
        line(&mut text, format_args!("for other hosts: {others}"));
    }
    text
}

fn of_environment(environment: &Environment) -> String {
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

fn of_times(predicted: &[Prediction], planned: Option<&str>, measured: bool) -> String {
    let constants = match measured {
        true => "with the constants that --calibrate measured",
        false => "with typical constants: 'scela-run --calibrate LIST' measures those of your hosts",
    };
    let mut text = format!("predicted time to start, {constants}\n");
    line(&mut text, format_args!("{:<20} {:>12} {:>12}", "", "published", "scela-run"));
    for Prediction { name, published, own } in predicted {
        let this = if planned == Some(*name) { "  (this plan)" } else { "" };
        line(&mut text, format_args!("{name:<20} {:>12} {:>12}{this}", seconds(*published), seconds(*own)));
    }
    line(&mut text, format_args!("published: equations of the literature; scela-run: a model of this program"));
    text
}

/// The prediction for this machine alone: there is nothing to choose from.
fn of_local_time(predicted: &[Prediction], planned: Option<&str>) -> String {
    let this = predicted.iter().find(|prediction| planned == Some(prediction.name));
    this.map_or_else(String::new, |this| {
        format!("predicted time to start: {}, with typical constants\n", seconds(this.own))
    })
}

fn of_recommendation(recommended: &Recommendation) -> String {
    let Recommendation { shape, fanout, batch, time, .. } = recommended;
    let fanout = match shape {
        Shape::Flat => String::new(),
        Shape::Tree => format!(" --fanout {fanout}"),
    };
    format!("recommended: --launch {}{fanout} --batch {batch}, which takes {}\n", shape.name(), seconds(*time))
}

fn of_checks(missing: &[OsString], is_local: bool) -> String {
    let mut text = "nothing was started".to_owned();
    if !is_local {
        text.push_str("; whether the hosts answer, and have the programs, was not checked");
    }
    text.push('\n');
    for program in missing {
        line(&mut text, format_args!("program {} cannot be run on this machine", quoted(program)));
    }
    text
}

fn line(text: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "  {line}");
}

fn counted(count: u64, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

/// To the millisecond, or to the tenth of a second where that is nothing anybody waits for.
fn seconds(time: Duration) -> String {
    let digits = if time < Duration::from_secs(100) { 3 } else { 1 };
    format!("{:.digits$} s", time.as_secs_f64())
}

/// A word as a shell takes it: plain where it can be, else in quotes; with the escapes of bash, ksh and
/// zsh where it has what no terminal should get.
fn quoted(word: &OsStr) -> String {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"%+,-./:=@_".contains(byte);
    match word.to_str() {
        Some(text) if !text.is_empty() && text.bytes().all(|byte| is_plain(&byte)) => text.to_owned(),
        Some(text) if !text.contains(char::is_control) => format!("'{}'", text.replace('\'', "'\\''")),
        _ => format!("$'{}'", word.as_bytes().iter().map(|byte| escaped(*byte)).collect::<String>()),
    }
}

/// A byte between `$'` and `'`.
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

    #[test]
    fn a_cluster_over_ssh() {
        let constants = Constants { sessions_max: 6, ..Constants::default() };
        let explained = Explained {
            hosts: vec![
                Alike { names: names("node[001-031]"), ranks: 16, agents: 1 },
                Alike { names: names("big"), ranks: 32, agents: 2 },
            ],
            spares: names("node[040-041]"),
            tree: Tree {
                shape: "tree",
                fanout: 8,
                batch: Some(6),
                has_shell_links: true,
                is_local: false,
                levels: vec![
                    Level { by: Vec::new(), starts: names("node[001-008]"), sessions_most: 8 },
                    Level { by: names("node[001-008]"), starts: names("node[009-031],big"), sessions_most: 3 },
                ],
            },
            bootstrap: Bootstrap {
                name: "ssh".to_owned(),
                why: "as there is no allocation".to_owned(),
                hosts: vec!["node001".to_owned()],
                command: [words("ssh -T -x -o BatchMode=yes node001"), vec!["exec '/opt/my dir/scela-run'".into()]]
                    .concat(),
                others: Some("the same with their names".to_owned()),
            },
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
            missing: vec!["./tail".into()],
            recommended: recommend(32, 16, &constants),
        };
        let expected = "\
528 ranks on 32 hosts, 33 agents
  node[001-031]: 16 ranks on each
  big: 32 ranks by 2 agents
  node[040-041]: kept for hosts that fail

launch: tree, fan-out 8, 2 levels, 6 remote shells at a time
  level 1: scela-run starts node[001-008] (8 remote shells)
  level 2: node[001-008] start big,node[009-031] (3 remote shells each at most)
  links go over these remote shells; no process listens on a port

bootstrap: ssh, as there is no allocation
  for node001: ssh -T -x -o BatchMode=yes node001 'exec '\\''/opt/my dir/scela-run'\\'''
  for other hosts: the same with their names

environment of ./head: all of yours
  without HOSTNAME
  without 'SSH_*'
  OMP_NUM_THREADS=2
  MSG='a b'

environment of ./tail: nothing of yours

predicted time to start, with typical constants: 'scela-run --calibrate LIST' measures those of your hosts
                          published    scela-run
  linear                   10.574 s     17.201 s
  flat (SMP-aware)          0.984 s      1.212 s
  tree (multi-level)        0.805 s      0.432 s
  tree, batched             0.781 s      0.612 s  (this plan)
  published: equations of the literature; scela-run: a model of this program
recommended: --launch tree --fanout 6 --batch 6, which takes 0.427 s

nothing was started; whether the hosts answer, and have the programs, was not checked
  program ./tail cannot be run on this machine
";
        assert_eq!(explain(&explained), expected);
    }

    #[test]
    fn one_machine() {
        let constants = Constants { measured: true, ..Constants::default() };
        let size = Size { nodes: 1, ppn: 1 };
        let explained = Explained {
            hosts: vec![Alike { names: names("laptop"), ranks: 1, agents: 1 }],
            spares: Vec::new(),
            tree: Tree {
                shape: "flat",
                fanout: 32,
                batch: None,
                has_shell_links: false,
                is_local: true,
                levels: vec![Level { by: Vec::new(), starts: names("laptop"), sessions_most: 1 }],
            },
            bootstrap: Bootstrap {
                name: "fork".to_owned(),
                why: "as all ranks are on this machine".to_owned(),
                hosts: vec!["laptop".to_owned()],
                command: words("/usr/bin/scela-run"),
                others: None,
            },
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
1 rank on 1 host, 1 agent
  laptop: 1 rank

launch: flat, fan-out 32, 1 level
  level 1: scela-run starts agents on laptop (1 agent)

bootstrap: fork, as all ranks are on this machine
  for laptop: /usr/bin/scela-run

environment of ranks: all of yours

predicted time to start: 0.201 s, with typical constants

nothing was started
";
        assert_eq!(explain(&explained), expected);
    }

    #[test]
    fn words_can_be_typed_again() {
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
    fn times_have_digits_that_matter() {
        let text = |ms| seconds(Duration::from_millis(ms));
        assert_eq!([text(0), text(4398), text(99_999), text(113_640)], ["0.000 s", "4.398 s", "99.999 s", "113.6 s"]);
    }
}

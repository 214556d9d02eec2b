//! Queries of ranks (`PMIx_Query_info`), as a value.
//!
//! libpmix answers what it knows by itself: the ABI, and what a namespace with ranks here was registered with. The other
//! keys, and their types, are those of the PMIx standard, version 5.

use pmi::{JobDescription, Rank, Ranks};

use super::message::{Fact, Outcome, Row};
use crate::core::PmixPlan;
use crate::sys::pmix::{CallError, Question};

/// The names of all namespaces of the session.
const NAMESPACES: &str = "pmix.qry.ns";
/// The number of ranks of a namespace.
const JOB_SIZE: &str = "pmix.job.size";
/// All processes of a namespace.
const TABLE: &str = "pmix.qry.ptable";
/// The processes of a namespace on this node.
const LOCAL_TABLE: &str = "pmix.qry.lptable";
/// The number of process sets. There are none: Open MPI has those of MPI sessions built in.
const SET_COUNT: &str = "pmix.qry.psetnum";
/// The names of the process sets.
const SETS: &str = "pmix.qry.psets";
/// The members of a process set.
const SET: &str = "pmix.qry.pmems";

/// An agent's knowledge of the session and of its own node.
pub(super) struct View<'a> {
    /// The nodes and the names of namespaces.
    pub(super) plan: &'a PmixPlan,
    /// The namespace of questions that name none.
    pub(super) own: Option<&'a str>,
    /// The number of this node.
    pub(super) node: u32,
    /// The pid of a rank here that runs.
    pub(super) pid_of: &'a dyn Fn(&str, Rank) -> Option<u32>,
}

impl View<'_> {
    fn namespace_of<'a>(&'a self, question: &'a Question) -> Option<&'a str> {
        question.namespace.as_deref().or(self.own)
    }

    /// Returns the names of the jobs that the root must describe, and whether it must be asked at all.
    pub(super) fn jobs_of(&self, questions: &[Question]) -> (Vec<String>, bool) {
        let about = |question: &&Question| [JOB_SIZE, TABLE, LOCAL_TABLE].contains(&question.key.as_str());
        let names = questions.iter().filter(about).filter_map(|question| self.namespace_of(question));
        let mut jobs: Vec<_> = names.filter_map(|name| self.plan.job_of(name)).map(str::to_owned).collect();
        jobs.sort();
        jobs.dedup();
        let is_needed = !jobs.is_empty() || questions.iter().any(|question| question.key == NAMESPACES);
        (jobs, is_needed)
    }

    /// Answers the questions: `names` are the jobs of the session, `described` those that were asked for.
    pub(super) fn answer(
        &self,
        questions: &[Question],
        names: &[String],
        described: &[(JobDescription, Ranks)],
    ) -> Outcome {
        let facts = questions.iter().map(|question| Ok((question.key.clone(), self.fact(question, names, described)?)));
        let facts: Vec<Result<_, CallError>> = facts.collect();
        let is_unknown = facts.contains(&Err(CallError::NotFound));
        let known: Vec<_> = facts.into_iter().filter_map(Result::ok).collect();
        match known.len() {
            0 if is_unknown => Outcome::Failed(CallError::NotFound),
            0 => Outcome::Failed(CallError::NotSupported),
            count => Outcome::Answered(known, count == questions.len()),
        }
    }

    fn fact(
        &self,
        question: &Question,
        names: &[String],
        described: &[(JobDescription, Ranks)],
    ) -> Result<Fact, CallError> {
        let job = || {
            let job = self.namespace_of(question).and_then(|name| self.plan.job_of(name));
            described.iter().find(|(known, _)| Some(known.kvsname.as_str()) == job).ok_or(CallError::NotFound)
        };
        Ok(match question.key.as_str() {
            NAMESPACES => {
                let names: Vec<_> = names.iter().map(|job| self.plan.name_of(job)).collect();
                Fact::Text(names.join(","))
            }
            JOB_SIZE => Fact::Ranks(job()?.0.size),
            TABLE => Fact::Table(self.table(job()?, |_| true)),
            LOCAL_TABLE => Fact::Table(self.table(job()?, |node| node == self.node)),
            SET_COUNT => Fact::Size(0),
            SETS => Fact::Text(String::new()),
            SET => return Err(CallError::NotFound),
            _ => return Err(CallError::NotSupported),
        })
    }

    /// Lists the ranks of a job on some nodes.
    fn table(&self, (job, ended): &(JobDescription, Ranks), is_wanted: impl Fn(u32) -> bool) -> Vec<Row> {
        let programs = job.programs.iter().flat_map(|program| std::iter::repeat_n(program, program.nprocs as usize));
        let rows = (0..job.size).map(Rank).zip(programs).filter_map(|(rank, program)| {
            let node = job.mapping.node_of(rank).filter(|node| is_wanted(*node))?;
            let has_ended = ended.contains(rank);
            Some(Row {
                process: (self.plan.name_of(&job.kvsname), Some(rank.0)),
                host: self.plan.hosts.get(node as usize).cloned().unwrap_or_default(),
                program: program.argv.first().cloned().unwrap_or_default(),
                pid: (self.pid_of)(&job.kvsname, rank).filter(|_| !has_ended).unwrap_or_default(),
                has_ended,
            })
        });
        rows.collect()
    }
}

#[cfg(test)]
mod tests {
    use pmi::{Mapping, ProgramDescription};

    use super::*;

    fn question(key: &str, namespace: Option<&str>) -> Question {
        Question { key: key.to_owned(), namespace: namespace.map(str::to_owned) }
    }

    /// Two nodes with two ranks each, of which rank 3 has ended. This is node 1.
    fn described() -> Vec<(JobDescription, Ranks)> {
        let program = |nprocs, argv: &[&str]| ProgramDescription {
            nprocs,
            argv: argv.iter().map(|word| word.as_bytes().to_vec()).collect(),
            wdir: b"/".to_vec(),
        };
        let job = JobDescription {
            kvsname: "job".to_owned(),
            size: 4,
            universe: -1,
            spawner: None,
            mapping: Mapping::from_nodes([0, 1, 0, 1]),
            programs: vec![program(3, &["sp ace/a.out", "x"]), program(1, &["b.out"])],
        };
        vec![(job, "3".parse().unwrap())]
    }

    #[track_caller]
    fn check(questions: &[Question], jobs: &[&str], expected: &Outcome) {
        let hosts = vec!["n0".to_owned(), "n1".to_owned()];
        let plan = PmixPlan { library: Vec::new(), secret: "s".to_owned(), hosts };
        let pid_of = |job: &str, rank: Rank| (job == "job" && rank.0 % 2 == 1).then_some(rank.0 + 100);
        let view = View { plan: &plan, own: Some("s.job"), node: 1, pid_of: &pid_of };
        assert_eq!(view.jobs_of(questions).0, jobs);
        let names = ["job".to_owned(), "other".to_owned()];
        assert_eq!(view.answer(questions, &names, &described()), *expected);
    }

    #[test]
    fn keys_about_all_namespaces_have_no_qualifier() {
        let questions = [question(NAMESPACES, None), question(SET_COUNT, None), question(SETS, None)];
        let values = [Fact::Text("s.job,s.other".to_owned()), Fact::Size(0), Fact::Text(String::new())];
        let facts = questions.iter().map(|question| question.key.clone()).zip(values).collect();
        check(&questions, &[], &Outcome::Answered(facts, true));
    }

    #[test]
    fn a_table_lists_the_ranks_of_a_namespace_and_the_pids_of_this_node() {
        let row = |rank: u32, host: &str, program: &str, pid, has_ended| Row {
            process: ("s.job".to_owned(), Some(rank)),
            host: host.to_owned(),
            program: program.as_bytes().to_vec(),
            pid,
            has_ended,
        };
        let local = vec![row(1, "n1", "sp ace/a.out", 101, false), row(3, "n1", "b.out", 0, true)];
        let mut all = local.clone();
        all.insert(0, row(0, "n0", "sp ace/a.out", 0, false));
        all.insert(2, row(2, "n0", "sp ace/a.out", 0, false));
        let questions = [question(TABLE, Some("s.job")), question(LOCAL_TABLE, Some("s.job"))];
        let facts = vec![(TABLE.to_owned(), Fact::Table(all)), (LOCAL_TABLE.to_owned(), Fact::Table(local))];
        check(&questions, &["job"], &Outcome::Answered(facts, true));
    }

    #[test]
    fn unknown_namespaces_are_not_found_and_unknown_keys_not_supported() {
        let (size, table) = (question(JOB_SIZE, None), question(TABLE, Some("s.gone")));
        let (foreign, unknown) = (question(JOB_SIZE, Some("t.job")), question("pmix.qry.qlst", None));
        let known = vec![(JOB_SIZE.to_owned(), Fact::Ranks(4))];
        check(&[size.clone(), table.clone()], &["gone", "job"], &Outcome::Answered(known.clone(), false));
        check(&[size, unknown.clone()], &["job"], &Outcome::Answered(known, false));
        check(&[table, unknown.clone()], &["gone"], &Outcome::Failed(CallError::NotFound));
        check(&[foreign], &[], &Outcome::Failed(CallError::NotFound));
        check(&[question(SET, None)], &[], &Outcome::Failed(CallError::NotFound));
        check(&[unknown], &[], &Outcome::Failed(CallError::NotSupported));
    }
}

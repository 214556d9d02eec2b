//! Environments of resource managers, complete and broken.

use super::*;
use crate::cluster::system::fake::Fake;

/// Returns nodes with their slots, and the job's number of ranks.
fn shown_nodes(allocation: &Allocation) -> String {
    let slots = |node: &Node| node.slots.map(|slots| format!(":{slots}")).unwrap_or_default();
    let nodes: Vec<String> = allocation.nodes.iter().map(|node| format!("{}{}", node.name, slots(node))).collect();
    let ranks = allocation.ranks.map(|ranks| format!(" for {ranks}")).unwrap_or_default();
    format!("{}{ranks}", nodes.join(" "))
}

#[track_caller]
fn check(fake: &Fake, nodes: &str, words: &str) {
    let found = find(ManagerChoice::Auto, fake).unwrap().expect("a job is found");
    assert_eq!((shown_nodes(&found).as_str(), found.words().as_str()), (nodes, words));
}

#[track_caller]
fn check_error(fake: &Fake, expected: &str) {
    let error = find(ManagerChoice::Auto, fake).unwrap_err();
    assert_eq!(error.to_string(), expected);
    assert!(error.hint().contains("--rm none"));
}

fn slurm() -> Fake {
    Fake::with(&[
        ("SLURM_JOB_ID", "123"),
        ("SLURM_JOB_NODELIST", "node[001-003],gpu1"),
        ("SLURM_TASKS_PER_NODE", "8(x3),2"),
        ("SLURM_JOB_CPUS_PER_NODE", "16(x3),4"),
        ("SLURM_CPUS_PER_TASK", "2"),
        ("SLURM_NTASKS", "26"),
    ])
}

#[test]
fn without_variables_of_a_manager_there_is_no_job() {
    assert_eq!(find(ManagerChoice::Auto, &Fake::default()).unwrap(), None);
    assert_eq!(find(ManagerChoice::None, &slurm()).unwrap(), None);
    let error = find(ManagerChoice::Only(Manager::Pbs), &slurm()).unwrap_err();
    assert_eq!(error.to_string(), "scela-run was not started in a job of PBS: PBS_JOBID is not set");
    assert_eq!(error.hint(), "start it inside of a job, or name the nodes with -hosts or -f");
    // Both variables exist outside these managers.
    let others = Fake::with(&[("JOB_ID", "7"), ("FLUX_JOB_ID", "2290616456")]);
    assert_eq!(find(ManagerChoice::Auto, &others).unwrap(), None);
}

#[test]
fn slurm_has_tasks_for_each_node() {
    let words = "the nodes are those of Slurm job 123 (SLURM_JOB_NODELIST)";
    check(&slurm(), "node001:8 node002:8 node003:8 gpu1:2 for 26", words);
    check(&slurm().without("SLURM_TASKS_PER_NODE"), "node001:8 node002:8 node003:8 gpu1:2 for 26", words);
    check(
        &slurm().without("SLURM_TASKS_PER_NODE").without("SLURM_JOB_CPUS_PER_NODE"),
        "node001 node002 node003 gpu1 for 26",
        words,
    );
    let old = Fake::with(&[("SLURM_JOBID", "9"), ("SLURM_NODELIST", "a,b"), ("SLURM_TASKS_PER_NODE", "4(x2)")]);
    check(&old, "a:4 b:4", "the nodes are those of Slurm job 9 (SLURM_NODELIST)");
}

#[test]
fn slurm_tells_the_devices_of_each_node_on_request() {
    let devices = |fake: &Fake| {
        let found = find(ManagerChoice::Auto, fake).unwrap().expect("a job is found");
        found.devices_of_each(fake).to_string()
    };
    for (value, expected) in [
        ("4", "gpu:4"),
        ("a100:4", "gpu:a100:4"),
        ("a100:2,v100:1", "gpu:a100:2,gpu:v100:1"),
        ("", ""),
        ("0", ""),
        ("a100=4", ""),
        ("x:y:4", ""),
    ] {
        assert_eq!(devices(&slurm().and("SLURM_GPUS_PER_NODE", value)), expected, "{value}");
    }
    let others = slurm().and("SLURM_GPUS_ON_NODE", "4").and("SLURM_JOB_GPUS", "0,1,2,3").and("SLURM_GPUS", "8");
    assert_eq!(devices(&others), "");
}

/// The variables of a real job.
#[test]
fn a_step_of_slurm_has_other_tasks_than_its_job() {
    let shell = Fake::with(&[
        ("SLURM_JOB_ID", "6"),
        ("SLURM_JOB_NODELIST", "node[1-3]"),
        ("SLURM_JOB_CPUS_PER_NODE", "4,1(x2)"),
        ("SLURM_NTASKS", "1"),
        ("SLURM_TASKS_PER_NODE", "1"),
        ("SLURM_STEP_ID", "0"),
    ]);
    let words = "the nodes are those of Slurm job 6 (SLURM_JOB_NODELIST)";
    check(&shell, "node1:4 node2:1 node3:1", words);
    check(&shell.and("SLURM_CPUS_PER_TASK", "2"), "node1:2 node2:1 node3:1", words);
    let interactive = shell.and("SLURM_STEP_ID", "4294967290").and("SLURM_TASKS_PER_NODE", "10,1(x2)");
    check(&interactive.and("SLURM_NTASKS", "12"), "node1:10 node2:1 node3:1 for 12", words);
}

#[test]
fn incomplete_variables_of_slurm_are_an_error() {
    check_error(
        &slurm().without("SLURM_JOB_NODELIST"),
        "SLURM_JOB_ID is set, as in a job of Slurm, but SLURM_JOB_NODELIST is not",
    );
    check_error(
        &slurm().and("SLURM_JOB_NODELIST", "node[3-1]"),
        "SLURM_JOB_NODELIST, column 6: the range 3-1 goes downwards\n    node[3-1]\n         ^^^",
    );
    check_error(
        &slurm().and("SLURM_TASKS_PER_NODE", "8(x3"),
        "SLURM_TASKS_PER_NODE is '8(x3', which is not a list of numbers like 16(x3),8",
    );
    check_error(
        &slurm().and("SLURM_TASKS_PER_NODE", "8(x3)"),
        "SLURM_TASKS_PER_NODE is about 3 nodes, and SLURM_JOB_NODELIST names 4",
    );
    check_error(&slurm().and("SLURM_NTASKS", "0"), "SLURM_NTASKS is '0', which is not a number above 0");
}

#[test]
fn pbs_has_a_line_for_each_slot() {
    let pbs = Fake::with(&[("PBS_JOBID", "45.server"), ("PBS_NODEFILE", "/aux/45.server")]);
    let words = "the nodes are those of PBS job 45.server (PBS_NODEFILE)";
    let lines = pbs.clone().file("/aux/45.server", "n1\nn1\nn2.example.org\nn1\n");
    check(&lines, "n1:3 n2.example.org:1", words);
    let once = pbs.clone().file("/aux/45.server", "n1\nn2\n");
    check(&once, "n1:1 n2:1", words);
    check(&once.and("PBS_NUM_PPN", "8"), "n1:8 n2:8", words);
    check(&lines.and("PBS_NUM_PPN", "8"), "n1:3 n2.example.org:1", words);
    check_error(&pbs, "PBS_NODEFILE names /aux/45.server, which cannot be read: entity not found");
    check_error(&pbs.clone().file("/aux/45.server", ""), "PBS_NODEFILE names /aux/45.server: there is no host in it");
    check_error(&pbs.without("PBS_NODEFILE"), "PBS_JOBID is set, as in a job of PBS, but PBS_NODEFILE is not");
}

#[test]
fn each_of_three_variables_of_lsf_is_read() {
    let lsf = Fake::with(&[("LSB_JOBID", "77"), ("LSB_HOSTS", "h1 h1 h2")]);
    check(&lsf, "h1:2 h2:1", "the nodes are those of LSF job 77 (LSB_HOSTS)");
    let pairs = lsf.clone().and("LSB_MCPU_HOSTS", "h1 4 h2 2 ");
    check(&pairs, "h1:4 h2:2", "the nodes are those of LSF job 77 (LSB_MCPU_HOSTS)");
    let file = pairs.clone().and("LSB_DJOB_HOSTFILE", "/home/u/.lsbatch/77.hostfile");
    check_error(&file, "LSB_DJOB_HOSTFILE names /home/u/.lsbatch/77.hostfile, which cannot be read: entity not found");
    let file = file.file("/home/u/.lsbatch/77.hostfile", "h1\nh3\nh1\n");
    check(&file, "h1:2 h3:1", "the nodes are those of LSF job 77 (LSB_DJOB_HOSTFILE)");
    for odd in ["h1", "h1 x", "h1 0", "h1 4 h2"] {
        check_error(
            &lsf.clone().and("LSB_MCPU_HOSTS", odd),
            &format!("LSB_MCPU_HOSTS is '{odd}', which is not hosts and numbers of slots in turn"),
        );
    }
    check_error(&lsf.without("LSB_HOSTS"), "LSB_JOBID is set, as in a job of LSF, but LSB_MCPU_HOSTS is not");
}

#[test]
fn grid_engine_has_a_line_for_each_queue_of_a_host() {
    let sge = Fake::with(&[("JOB_ID", "5"), ("PE_HOSTFILE", "/spool/pe_hostfile")]);
    let lines = "n1 4 all.q@n1 UNDEFINED\nn2.example.org 8 all.q@n2 <NULL>\n\nn1 2 fast.q@n1 UNDEFINED\n";
    let words = "the nodes are those of Grid Engine job 5 (PE_HOSTFILE)";
    check(&sge.clone().file("/spool/pe_hostfile", lines), "n1:6 n2.example.org:8", words);
    check_error(
        &sge.clone().file("/spool/pe_hostfile", "n1 4\nn2\n"),
        "PE_HOSTFILE names /spool/pe_hostfile, whose line 2 is 'n2' and not a host and its slots",
    );
    check_error(&sge.without("JOB_ID"), "PE_HOSTFILE is set, as in a job of Grid Engine, but JOB_ID is not");
}

#[test]
fn flux_is_asked() {
    let resources = r#"{"version": 1, "execution": {"R_lite": [
        {"rank": "0,2", "children": {"core": "0-7", "gpu": "0"}}, {"rank": "1", "children": {"core": "[0-1,4]"}}],
        "starttime": 0.0, "expiration": 0.0, "nodelist": ["fluke[7-8]", "fluke12"]}}"#;
    // Flux often runs inside a Slurm job.
    let instance = slurm().and("FLUX_URI", "local:///tmp/flux-x/local-0");
    let answered = instance.clone().answer("flux kvs get resource.R", resources);
    let words = "the nodes are those of this Flux instance (FLUX_URI)";
    check(&answered, "fluke7:8 fluke8:3 fluke12:8", words);
    let task = instance.clone().and("FLUX_JOB_ID", "f2Xa").answer("flux job info f2Xa R", resources);
    check(&task, "fluke7:8 fluke8:3 fluke12:8", "the nodes are those of Flux job f2Xa (FLUX_JOB_ID)");
    let found = find(ManagerChoice::Only(Manager::Slurm), &instance).unwrap().unwrap();
    assert_eq!(found.manager, Manager::Slurm);

    check_error(&instance, "FLUX_URI is set, but 'flux kvs get resource.R' gives no answer: entity not found");
    let answer = |answer: &str| instance.clone().answer("flux kvs get resource.R", answer);
    let cannot = "FLUX_URI is set, but the answer of 'flux kvs get resource.R' cannot be read";
    check_error(&answer("{}"), &format!("{cannot}: missing field `version` at line 1 column 2"));
    check_error(
        &answer(&resources.replace(r#""fluke[7-8]", "#, "")),
        &format!("{cannot}: it has the cores of 3 nodes and the names of 1"),
    );
    check_error(
        &answer(&resources.replace("\"version\": 1", "\"version\": 2")),
        &format!("{cannot}: its version is 2; only version 1 is supported"),
    );
    check_error(&answer(&resources.replace("0,2", "0,x")), &format!("{cannot}: '0,x' is not a set of numbers"));
}

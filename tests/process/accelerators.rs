//! Accelerators and other devices: ranks get their own, and hosts without them get no rank.

use std::fs;

use tests::{Outcome, Run, scela, sh};

use crate::host;

/// Returns a run with a hosts file of this text.
fn with_hosts(text: &str) -> Run {
    let run = scela();
    let file = run.world().file("hosts");
    fs::write(&file, text).unwrap();
    run.arg("-f").arg(file)
}

/// Lets each rank print its number and these variables.
fn told(run: Run, variables: &str) -> Outcome {
    run.program(sh(&format!("echo $PMI_RANK {variables}"))).run()
}

#[test]
fn ranks_get_devices_of_the_hosts_file() {
    for agents in [1, 2] {
        let run = with_hosts("localhost gres=fpga:reduce:1,fpga:allreduce:4\n").np(2).agents(agents);
        let outcome = told(run.args(["--gres", "fpga:allreduce:2"]), "$SCELA_GRES_FPGA");
        outcome.is_quiet_success();
        assert_eq!(outcome.sorted_lines(), ["0 1,2", "1 3,4"]);
    }
    // Without -np, as many ranks as the host has room for.
    let outcome = told(with_hosts("localhost slots=8 gres=fpga:1\n").args(["--gres=fpga"]), "$SCELA_GRES_FPGA");
    outcome.is_quiet_success().wrote("0 0\n");
}

#[test]
fn too_few_devices_are_an_error_before_the_start() {
    let run = with_hosts("localhost gres=fpga:allreduce:1\n").np(2).args(["--gres", "fpga:allreduce"]);
    told(run, "").has_code(2).says(
        "2 ranks need fpga:allreduce:1 each, and there is room for 1: this machine has fpga:allreduce:1\n  hint: \
         start fewer ranks",
    );
    let run = scela().np(1).args(["--gpus-per-rank", "1", "--gres", "gpu:2"]);
    told(run, "").has_code(2).says("contradict each other: each says how many GPUs a rank gets");
}

#[test]
fn ranks_get_the_names_of_gpus_that_a_manager_has_listed() {
    let run = || scela().np(2).env("CUDA_VISIBLE_DEVICES", "GPU-8932f937,MIG-4c1,3");
    let variables = "$CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER";
    let outcome = told(run().args(["--gpus-per-rank", "1"]), variables);
    outcome.is_quiet_success();
    assert_eq!(outcome.sorted_lines(), ["0 GPU-8932f937 PCI_BUS_ID", "1 MIG-4c1 PCI_BUS_ID"]);
    let outcome = told(run(), variables);
    assert_eq!(outcome.sorted_lines(), ["0 GPU-8932f937,MIG-4c1,3", "1 GPU-8932f937,MIG-4c1,3"], "not asked for");
    let outcome = told(run().args(["--gpus-per-rank", "2"]), "");
    outcome
        .has_code(251)
        .says(&format!(
            " on {} could not be started: rank 1 needs 2 gpus, and 1 of the host's gpu:3 is free: rank 0 has 2\n",
            host()
        ))
        .says("\n  hint: start fewer ranks on it, or ask for fewer devices\n");
}

#[test]
fn devices_are_reported_and_explained() {
    let run = || with_hosts("localhost gres=fpga:2\n").np(2).args(["--gres", "fpga", "--bind-to", "none"]);
    let outcome = told(run().arg("--report-bindings"), "");
    outcome.has_code(0);
    for rank in 0..2 {
        outcome.says(&format!("scela-run: rank {rank} on {}: not bound, may use processor", host()));
        outcome.says(&format!(", fpga {rank}\n"));
    }
    let outcome = told(run().arg("--explain"), "");
    outcome.is_quiet_success().wrote_among_others("\nbinding of ranks:\n  each rank gets fpga:1\n");
    outcome.wrote_among_others("  the hosts of ranks 0-1 offer fpga:2\n").wrote_among_others(", fpga 1\n");
}

#[test]
fn hosts_without_the_devices_get_no_rank() {
    let run = || with_hosts("h1 slots=8\nh2 gres=fpga:x:1\nh3 gres=fpga:y:2,fpga:x:1\n");
    let run = || run().args(["--bootstrap", "exec:env HERE={host}", "--gres", "fpga:x"]);
    let outcome = told(run().np(2).arg("--report-bindings"), "$SCELA_GRES_FPGA");
    outcome.has_code(0).says("rank 0 on h2: ").says(", fpga 0\n").says("rank 1 on h3: ").says(", fpga 2\n");
    assert_eq!(outcome.sorted_lines(), ["0 0", "1 2"]);
    let expected = "3 ranks need fpga:x:1 each, and there is room for 2: h1 has none; h2 has fpga:x:1; \
                    h3 has fpga:y:2,fpga:x:1\n";
    told(run().np(3), "").has_code(2).says(expected);
    told(run().np(2).args(["-rankmap", "0,1"]), "")
        .has_code(2)
        .says("rank map: h1 would get 1 of the ranks, each of which needs fpga:x:1, and it has none");
}

#[test]
fn a_rank_that_starts_again_has_its_devices() {
    let run = with_hosts("localhost gres=fpga:2\n").np(2).args(["--gres", "fpga", "--on-failure", "restart=rank"]);
    let script = "[ $PMI_RANK = 0 ] || [ -n \"$SCELA_INCARNATION\" ] || exit 3; echo $PMI_RANK $SCELA_GRES_FPGA";
    let outcome = run.program(sh(script)).run();
    outcome.has_code(0);
    assert_eq!(outcome.sorted_lines(), ["0 0", "1 1"]);
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! `configs/slurm.sh` on a Slurm cluster of two nodes, both on this machine. One of them dies.

use crate::command::tramplab;
use std::{
    fs::{self, Permissions},
    net::TcpListener,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};
use tempfile::TempDir;
use tramplab_host::{given::Given, runs::RunDir};
use tramplab_model::run::Outcome;
use walkdir::WalkDir;

/// More than any step takes on a loaded machine.
const LIMIT: Duration = Duration::from_secs(600);
/// Seconds after which Slurm gives up a silent node.
const DEAD_AFTER: u32 = 5;
const SUITE: &str = "name: t\ndescription: d\nkernels: [\"6.12\"]\ntests:\n  - lbr_waste: { \
                     mechanisms: [fentry, fexit, kprobe, raw_tp] }\n  - trigger: { mechanisms: \
                     [fentry, fexit], throughput: false }\n";

/// A cluster, which dies with this value.
struct Cluster {
    dir: TempDir,
    daemons: Vec<Child>,
}

impl Cluster {
    fn start() -> Cluster {
        let dir = tempfile::Builder::new().prefix("tramplab-slurm-").tempdir().unwrap();
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
        let at = dir.path().display();
        fs::write(dir.path().join("key"), [7; 1024]).unwrap();
        fs::set_permissions(dir.path().join("key"), Permissions::from_mode(0o600)).unwrap();
        let user = nix::unistd::User::from_uid(nix::unistd::geteuid()).unwrap().unwrap().name;
        // Held until all are known, so that they differ.
        let free: Vec<TcpListener> =
            (0..3).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let ports: Vec<u16> =
            free.iter().map(|socket| socket.local_addr().unwrap().port()).collect();
        drop(free);
        let mut conf = format!(
            "ClusterName=test\nSlurmctldHost=localhost\nSlurmUser={user}\nSlurmdUser={user}\n\
             AuthType=auth/munge\nAuthInfo=socket={at}/munge.socket\nCredType=cred/munge\n\
             StateSaveLocation={at}/state\nSlurmdSpoolDir={at}/spool-%n\n\
             SlurmctldPidFile={at}/slurmctld.pid\nSlurmdPidFile={at}/slurmd-%n.pid\n\
             SlurmctldPort={}\nProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\n\
             JobAcctGatherType=jobacct_gather/none\n\
             AccountingStorageType=accounting_storage/none\nSelectType=select/cons_tres\n\
             SelectTypeParameters=CR_CPU\nSwitchType=switch/none\nMpiDefault=none\n\
             SlurmdTimeout={DEAD_AFTER}\nSchedulerParameters=sched_interval=2\n",
            ports[0]
        );
        for (node, port) in NODES.iter().zip(&ports[1..]) {
            conf += &format!(
                "NodeName={node} NodeHostname=localhost NodeAddr=localhost Port={port} CPUs=1\n"
            );
        }
        conf += "PartitionName=all Nodes=ALL Default=YES State=UP\n";
        fs::write(dir.path().join("slurm.conf"), conf).unwrap();
        let mut cluster = Cluster { dir, daemons: Vec::new() };
        let file = |name: &str| format!("{}", cluster.dir.path().join(name).display());
        let munged = [
            "--force".to_owned(),
            "--foreground".to_owned(),
            format!("--key-file={}", file("key")),
            format!("--socket={}", file("munge.socket")),
            format!("--pid-file={}", file("munged.pid")),
            format!("--log-file={}", file("munged.log")),
            format!("--seed-file={}", file("munged.seed")),
        ];
        let munged: Vec<&str> = munged.iter().map(String::as_str).collect();
        cluster.daemon("munged", &munged);
        cluster.wait("munged", |cluster| cluster.dir.path().join("munge.socket").exists());
        cluster.daemon("slurmctld", &["-D", "-c"]);
        for node in NODES {
            cluster.daemon("slurmd", &["-D", "-N", node]);
        }
        let idle = |cluster: &Cluster| {
            let sinfo = cluster.command("sinfo").args(["--noheader", "-o", "%D %t"]).output();
            sinfo.is_ok_and(|output| output.stdout.trim_ascii() == b"2 idle")
        };
        cluster.wait("two idle nodes", idle);
        cluster
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("SLURM_CONF", self.dir.path().join("slurm.conf"));
        command
    }

    fn daemon(&mut self, program: &str, arguments: &[&str]) {
        let log = self.dir.path().join(format!("{program}-{}.log", self.daemons.len()));
        let log = fs::File::create(log).unwrap();
        let mut command = self.command(program);
        command.args(arguments).stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.daemons.push(command.spawn().unwrap_or_else(|error| panic!("{program}: {error}")));
    }

    fn wait(&self, what: &str, mut is_there: impl FnMut(&Cluster) -> bool) {
        let came = Given::to_us().wait(LIMIT, || is_there(self));
        assert!(came, "{what} did not come\n{}", self.logs());
    }

    fn logs(&self) -> String {
        let files = WalkDir::new(self.dir.path()).max_depth(2).into_iter().flatten();
        let logs = files.filter(|file| file.path().extension().is_some_and(|name| name == "log"));
        let text = |file: walkdir::DirEntry| {
            let text = fs::read(file.path()).unwrap_or_default();
            format!("== {}\n{}", file.path().display(), String::from_utf8_lossy(&text))
        };
        logs.map(text).collect()
    }

    /// Starts jobs of dead nodes, which Slurm keeps waiting for two minutes.
    fn start_again(&self) {
        let queue = self.command("squeue").args(["--noheader", "--format", "%A %r"]).output();
        let queue = String::from_utf8(queue.unwrap().stdout).unwrap();
        for job in queue.lines().filter_map(|line| line.strip_suffix(" BeginTime")) {
            let mut update = self.command("scontrol");
            update.args(["update", &format!("JobId={job}"), "StartTime=now"]);
            // Slurm refuses it while the job is being taken from its node.
            let _ = update.output();
        }
    }

    /// The variable that all processes of the cluster have.
    fn configuration(&self) -> String {
        format!("SLURM_CONF={}", self.dir.path().join("slurm.conf").display())
    }

    /// Kills a node's daemon and all jobs on it, as a power cut does.
    fn cut_power(&mut self, node: usize) {
        let daemon = &mut self.daemons[2 + node];
        daemon.kill().unwrap();
        daemon.wait().unwrap();
        let jobs = with_environment(&format!("SLURMD_NODENAME={}", NODES[node]));
        let ours = with_environment(&self.configuration());
        jobs.into_iter().filter(|process| ours.contains(process)).for_each(kill);
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let of_this = self.configuration();
        self.daemons.iter_mut().rev().for_each(|daemon| {
            let _ = daemon.kill();
            let _ = daemon.wait();
        });
        with_environment(&of_this).into_iter().for_each(kill);
    }
}

const NODES: [&str; 2] = ["n1", "n2"];

fn kill(process: i32) {
    let _ = nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(process),
        nix::sys::signal::Signal::SIGKILL,
    );
}

/// Processes whose environment has a word that begins so, and slurmstepd above them.
fn with_environment(begin: &str) -> Vec<i32> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(process) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
        if environment.split(|&byte| byte == 0).any(|word| word.starts_with(begin.as_bytes())) {
            found.extend(stepd_above(process));
            found.push(process);
        }
    }
    found
}

fn stepd_above(process: i32) -> Option<i32> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let parent: i32 =
        status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()?;
    let name = fs::read_to_string(format!("/proc/{parent}/comm")).ok()?;
    (name.trim() == "slurmstepd").then_some(parent)
}

/// A node that measures a shard and has finished a cell of it.
fn node_with_a_result(folder: &Path) -> Option<usize> {
    let has_a_result = |shard: &&str| {
        let mut files = WalkDir::new(folder.join(shard)).into_iter().flatten();
        files.any(|file| file.file_name() == "cell.json")
    };
    let node = |shard: &str| {
        let job = with_environment(&format!("SLURM_ARRAY_TASK_ID={shard}"));
        let on = |node: &str| with_environment(&format!("SLURMD_NODENAME={node}"));
        NODES.iter().position(|node| on(node).iter().any(|process| job.contains(process)))
    };
    ["1", "2"].into_iter().filter(has_a_result).find_map(node)
}

#[test]
#[ignore = "full: starts Slurm's daemons, which wait for minutes"]
fn measures_a_suite_on_two_nodes_of_which_one_dies() {
    let mut cluster = Cluster::start();
    let folder = cluster.dir.path().join("runs");
    let suite = cluster.dir.path().join("suite.yaml");
    fs::write(&suite, SUITE).unwrap();
    let mut submit = cluster.command("configs/slurm.sh");
    submit.current_dir(tramplab().get_current_dir().unwrap());
    submit.env("TRAMPLAB_PROGRAM", tramplab().get_program());
    submit.arg("2").arg(&folder).arg("--suite").arg(&suite);
    submit.args(["--arch", "x86_64", "--accel", "tcg", "--jobs", "1"]);
    let output = cluster.dir.path().join("submitted.log");
    let file = fs::File::create(&output).unwrap();
    submit.stdout(file.try_clone().unwrap()).stderr(file);
    let mut submitted = submit.spawn().unwrap();

    let mut victim = None;
    cluster.wait("a result of a shard", |_| {
        victim = node_with_a_result(&folder);
        victim.is_some()
    });
    let first: Vec<PathBuf> = runs(&folder);
    cluster.cut_power(victim.unwrap());
    cluster.wait("the end", |cluster| {
        cluster.start_again();
        submitted.try_wait().unwrap().is_some()
    });
    let code = submitted.wait().unwrap().code();

    let merged =
        RunDir::load(&folder.join("merged")).unwrap_or_else(|_| panic!("{}", cluster.logs()));
    assert_eq!(code, Some(0), "{}", cluster.logs());
    assert_eq!(merged.cells.len(), 6);
    assert!(merged.cells.iter().all(|cell| cell.outcome == Outcome::Pass), "{merged:#?}");
    // The dead node's run, and the one that went on with it.
    let all = runs(&folder);
    assert_eq!((first.len(), all.len()), (2, 3), "{}", cluster.logs());
    let rest = all.iter().filter(|run| RunDir::load(run).unwrap().rest_of.is_some());
    assert_eq!(rest.count(), 1);
}

/// The runs of all shards.
fn runs(folder: &Path) -> Vec<PathBuf> {
    let entries = WalkDir::new(folder).min_depth(2).max_depth(2).into_iter().flatten();
    let folders = entries
        .filter(|entry| entry.file_type().is_dir() && entry.path().join("run.json").exists());
    let folders = folders.map(walkdir::DirEntry::into_path);
    folders.filter(|path| !path.starts_with(folder.join("merged"))).collect()
}

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};
use tramplab::{run::*, vm::*};
use tramplab_protocol::{message::*, *};
fn main() {
    let env = |n: &str| PathBuf::from(std::env::var_os(n).unwrap());
    let mech: Mechanism = std::env::args().nth(1).unwrap().parse().unwrap();
    let functions: Functions = serde_json::from_str(&std::env::args().nth(2).unwrap()).unwrap();
    let free = std::env::args().nth(3).is_some();
    let mut dir = tempfile::tempdir().unwrap();
    if std::env::var_os("KEEP").is_some() {
        dir.disable_cleanup(true);
        println!("{}", dir.path().display());
    }
    let root = dir.path().join("root.cpio");
    initramfs::build(&env("TRAMPLAB_AGENT"), &[], &root).unwrap();
    let initrd = dir.path().join("initrd.cpio");
    let cmd =
        Command::Attach(AttachRequest { mechanism: mech, functions, rounds: 3, seed: 0, seconds: None });
    initramfs::with_orders(&root, &[Command::Facts, cmd.clone()], &initrd).unwrap();
    let t = Instant::now();
    let mut vm = Vm::boot(Spec {
        qemu: QemuProgram { program: env("TRAMPLAB_QEMU"), arguments: vec![], environment: vec![] },
        arch: Arch::X86_64,
        accel: Accel::Tcg,
        clock: if free { Clock::Free } else { Clock::Exact },
        kernel: env("TRAMPLAB_TEST_KERNEL"),
        initrd,
        cpus: 1,
        memory_mib: 1024,
        append: vec![],
        plugin: std::env::var_os("PLUGIN").map(PathBuf::from),
        dir: dir.path().to_owned(),
        deadlines: Deadlines { boot: Duration::from_secs(600), silence: Duration::from_secs(600) },
    })
    .map_err(|e| {
        eprintln!("{:?}", e.console_tail);
        e
    })
    .unwrap();
    println!("up {:?} uptime {:?}", t.elapsed(), vm.ready().uptime);
    let Response::Facts(f) = vm.request(Command::Facts, Duration::from_secs(60)).unwrap().unwrap() else {
        panic!()
    };
    println!("{} {} {}", f.clocksource, f.ftrace_functions, f.btf_functions);
    let Response::Attach(r) = vm.request(cmd, Duration::from_secs(60)).unwrap().unwrap() else { panic!() };
    println!("{} refused {} {:?}", r.functions.len(), r.refused.len(), r.rounds);
}

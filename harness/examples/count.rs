use std::{
    path::PathBuf,
    time::{Duration, Instant},
};
use tramplab::{
    profile::{self, count},
    run::*,
    vm::*,
};
use tramplab_protocol::{message::*, *};
fn main() {
    let env = |n: &str| PathBuf::from(std::env::var_os(n).unwrap());
    let mech: Mechanism = std::env::args().nth(1).unwrap().parse().unwrap();
    let functions: Functions = serde_json::from_str(&std::env::args().nth(2).unwrap()).unwrap();
    let free = std::env::args().nth(3).is_some();
    let mut dir = tempfile::tempdir().unwrap();
    dir.disable_cleanup(true);
    println!("{}", dir.path().display());
    let root = dir.path().join("root.cpio");
    initramfs::build(&env("TRAMPLAB_AGENT"), &[], &root).unwrap();
    let initrd = dir.path().join("initrd.cpio");
    let cmd =
        Command::Attach(AttachRequest { mechanism: mech, functions, rounds: 2, seed: 0, seconds: None });
    let orders = if free { vec![] } else { vec![Command::Facts, cmd.clone()] };
    initramfs::with_orders(&root, &orders, &initrd).unwrap();
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
        plugin: Some(env("TRAMPLAB_PLUGIN")),
        dir: dir.path().to_owned(),
        deadlines: Deadlines { boot: Duration::from_secs(600), silence: Duration::from_secs(600) },
    })
    .map_err(|e| {
        eprintln!("{:?}", e.console_tail);
        e
    })
    .unwrap();
    println!("up {:?} uptime {:?}", t.elapsed(), vm.ready().uptime);
    let Response::Facts(_) = vm.request(Command::Facts, Duration::from_secs(60)).unwrap().unwrap() else {
        panic!()
    };
    let Response::Attach(r) = vm.request(cmd, Duration::from_secs(600)).unwrap().unwrap() else { panic!() };
    println!("done {:?}", t.elapsed());
    println!("{} refused {} {:?}", r.functions.len(), r.refused.len(), r.rounds);
    for n in 0..2 {
        let bytes = std::fs::read(counts::file_name(dir.path(), n)).unwrap();
        let c = counts::Counts::decode(&bytes).unwrap();
        let addresses = count::addresses(&c);
        println!(
            "{} bytes {} addresses {} paths {} blocks cut {}",
            bytes.len(),
            addresses.len(),
            c.vcpus[0].paths.len(),
            c.vcpus[0].blocks.len(),
            c.vcpus[0].cut
        );
        let Response::Resolve { symbols } =
            vm.request(Command::Resolve { addresses }, Duration::from_secs(60)).unwrap().unwrap()
        else {
            panic!()
        };
        let p = count::of_counts("c", profile::Phase::Attach, &c, &symbols.into_iter().flatten().collect());
        let sum =
            |f: &dyn Fn(&profile::Node) -> bool| p.nodes.iter().filter(|n| f(n)).map(|n| n.own).sum::<u64>();
        println!(
            "total {} interrupts {} nodes {} functions {}",
            sum(&|_| true),
            sum(&|n| n.interrupt),
            p.nodes.len(),
            p.functions.len()
        );
        for (i, t) in p.threads.iter().enumerate() {
            println!(
                "  {}:{} measured {} task {} irq {}",
                t.command,
                t.pid,
                t.measured,
                sum(&|n| n.thread == i as u32 && !n.interrupt),
                sum(&|n| n.thread == i as u32 && n.interrupt)
            );
        }
        let mut own = vec![0u64; p.functions.len()];
        for n in p.nodes.iter().filter(|n| !n.interrupt && p.threads[n.thread as usize].measured) {
            own[n.function as usize] += n.own;
        }
        let mut order: Vec<usize> = (0..own.len()).collect();
        order.sort_by_key(|&i| std::cmp::Reverse(own[i]));
        let total: u64 = own.iter().sum();
        for &i in order.iter().take(12) {
            println!(
                "   {:5.2}% {} {:?}",
                100.0 * own[i] as f64 / total as f64,
                p.functions[i].name,
                p.functions[i].space
            );
        }
        std::fs::write(dir.path().join(format!("p{n}.json")), serde_json::to_vec(&p).unwrap()).unwrap();
    }
}

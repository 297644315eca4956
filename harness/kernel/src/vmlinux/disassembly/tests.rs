// SPDX-License-Identifier: MIT OR Apache-2.0
//! The same function in two layouts, for both architectures if there is a compiler.

use super::*;
use std::path::Path;

const PROGRAM: &str = "\
#ifdef SHIFTED
char more_data[5000] = { 1 };
const char more_constants[3000] = { 2 };
int more(int a)
{
	return more_data[a] * more_constants[a];
}
#endif

int counter = 1;
static int values[8] = { 1 };

__attribute__((noinline)) void callee(const char *text, int *value)
{
	asm volatile(\"\" : : \"r\"(text), \"r\"(value) : \"memory\");
}

__attribute__((noinline)) int traced(int a)
{
	if (a > 3)
		counter += a;
#ifdef CHANGED
	callee(\"another\", 0);
#endif
	callee(\"text\", &values[a & 7]);
	return counter + values[a & 7];
}

void _start(void)
{
	for (;;)
		traced(1);
}
";

/// Links the program where kernels are. None without a compiler.
fn build(folder: &Path, arch: Arch, define: &str) -> Option<Vmlinux> {
    let (compiler, flags): (_, &[&str]) = match arch {
        Arch::X86_64 => ("x86_64-linux-gnu-gcc", &["-mcmodel=kernel", "-fcf-protection=none"]),
        Arch::Arm64 => ("aarch64-linux-gnu-gcc", &[]),
    };
    let compiler = program::in_path(compiler)?;
    let (source, out) = (folder.join("main.c"), folder.join("vmlinux"));
    fs::write(&source, PROGRAM).unwrap();
    let mut command = Command::new(compiler);
    command.args(["-O2", "-nostdlib", "-static", "-no-pie", "-fno-pie", "-D", define]).args(flags);
    command.arg("-Wl,-Ttext-segment=0xffffffff81000000").arg(&source).arg("-o").arg(&out);
    child::run(&mut command, LIMIT).unwrap();
    Some(Vmlinux::read(&out).unwrap())
}

fn without_offsets(parts: &Parts) -> Vec<(&str, Option<u64>)> {
    parts["traced"].iter().map(|one| (one.text.as_str(), one.target)).collect()
}

#[test]
fn layout_does_not_change_an_instruction() {
    let folder = tempfile::tempdir().unwrap();
    for (arch, call) in [(Arch::X86_64, "call   callee"), (Arch::Arm64, "bl     callee")] {
        let traced = |define| {
            let vmlinux = build(folder.path(), arch, define)?;
            Some((vmlinux.function_sizes().unwrap(), vmlinux.disassemble("traced", arch).unwrap()))
        };
        let [Some(base), Some(shifted), Some(changed)] =
            ["PLAIN", "SHIFTED", "CHANGED"].map(traced)
        else {
            eprintln!("skipped: no compiler for {arch}");
            continue;
        };
        assert!(base.0.0.len() < shifted.0.0.len());
        assert_eq!(without_offsets(&base.1), without_offsets(&shifted.1));
        let code = without_offsets(&base.1);
        let calls = |code: &[(&str, _)]| code.iter().filter(|(text, _)| *text == call).count();
        assert_eq!((calls(&code), calls(&without_offsets(&changed.1))), (1, 2), "{code:?}");
        for name in ["counter", ".rodata"] {
            assert!(code.iter().any(|(text, _)| text.contains(name)), "{name}: {code:?}");
        }
        // The jump over the addition stays in the function.
        let size = base.0.0["traced"];
        let jumps: Vec<u64> = code.iter().filter_map(|(_, target)| *target).collect();
        assert!(jumps.len() == 1 && jumps[0] < size, "{code:?}");
        let last = base.1["traced"].last().unwrap();
        assert!(last.offset < size && last.text == "ret", "{last:?}");
    }
}

#[test]
fn finds_no_code_of_inlined_and_unknown_functions() {
    let folder = tempfile::tempdir().unwrap();
    let arch = Arch::host().unwrap();
    if let Some(vmlinux) = build(folder.path(), arch, "PLAIN") {
        assert_eq!(vmlinux.disassemble("trace", arch).unwrap(), Parts::new());
    }
}

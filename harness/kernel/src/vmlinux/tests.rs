// SPDX-License-Identifier: MIT OR Apache-2.0
//! A small program stands for a kernel. The host's compiler builds it.

use super::*;
use std::{process::Command, time::Duration};
use tramplab_host::child;
use tramplab_model::code::SourceLine;

const MAIN: &str = "\
static inline __attribute__((always_inline)) int twice(int a)
{
	return a * 2 + *(volatile int *)0x1000;
}

static inline __attribute__((always_inline)) int outer(int a)
{
	return twice(a) + 1;
}

__attribute__((noinline)) int traced(int a)
{
	return outer(a);
}

extern int also_traced(int a) __attribute__((alias(\"traced\")));

static __attribute__((noinline, used)) int same_name(int a)
{
	return a + 1;
}

__attribute__((used)) char secret[] = \"not for the cache\";

void _start(void)
{
	for (;;)
		traced(same_name(1));
}
";

/// Data of the program.
const SECRET: &[u8] = b"not for the cache";

const OTHER: &str = "\
static __attribute__((noinline, used)) int same_name(int a)
{
	return a * 3 - 7;
}
";

fn copy(from: &Path, to: &Path) -> Result<(), VmlinuxError> {
    Vmlinux::read(from)?.keep(to)
}

/// Links `init/main.c` and `kernel/other.c` out of tree, as kbuild does.
fn build(folder: &Path, flags: &[&str]) -> PathBuf {
    let (source, out) = (folder.join("src"), folder.join("out"));
    for (file, text) in [("init/main.c", MAIN), ("kernel/other.c", OTHER)] {
        let path = source.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    fs::create_dir_all(&out).unwrap();
    let vmlinux = out.join("vmlinux");
    let mut command = Command::new("cc");
    command
        .args(["-O2", "-nostdlib", "-static", "-fno-asynchronous-unwind-tables"])
        .args(["-fcf-protection=none", "-fno-ipa-cp"])
        .args(flags)
        .args([source.join("init/main.c"), source.join("kernel/other.c")])
        .arg("-o")
        .arg(&vmlinux)
        .current_dir(&out);
    if !cfg!(target_arch = "x86_64") {
        command = without(command, "-fcf-protection=none");
    }
    child::run(&mut command, Duration::from_secs(60)).unwrap();
    vmlinux
}

fn without(command: Command, flag: &str) -> Command {
    let mut other = Command::new(command.get_program());
    other.args(command.get_args().filter(|argument| *argument != flag));
    other.current_dir(command.get_current_dir().unwrap());
    other
}

/// The lines of every address in a function, without repetition.
fn lines_of(lines: &lines::Lines, symbol: &str, size: u64) -> Vec<Vec<SourceLine>> {
    let start = lines.address(symbol).unwrap();
    let mut all: Vec<_> = (start..start + size).map(|address| lines.find(address)).collect();
    all.dedup();
    all
}

fn line(function: &str, line: u32) -> SourceLine {
    SourceLine { function: function.to_owned(), file: "init/main.c".to_owned(), line }
}

#[test]
fn finds_inlined_functions_below_the_sources() {
    let folder = tempfile::tempdir().unwrap();
    let built = build(folder.path(), &["-gdwarf-5"]);
    let kept = folder.path().join("kept");
    copy(&built, &kept).unwrap();
    for path in [built, kept] {
        let vmlinux = Vmlinux::read(&path).unwrap();
        let sizes = vmlinux.function_sizes().unwrap().0;
        let lines = vmlinux.lines().unwrap().unwrap();
        let found = lines_of(&lines, "traced", sizes["also_traced"]);
        let inlined = vec![line("twice", 3), line("outer", 8), line("traced", 13)];
        assert!(found.contains(&inlined), "{}: {found:#?}", path.display());
        for lines in &found {
            let own = lines.last().expect("every address of the function has a line");
            assert_eq!((&*own.function, &*own.file), ("traced", "init/main.c"));
        }
        // Two static functions have the name, so it has no address of its own.
        assert_eq!(lines.address("same_name"), None);
        assert_eq!(lines.find(1), []);
    }
}

/// `addr2line -i` prints a function and its line for each inlined function, the innermost first.
fn by_binutils(vmlinux: &Path, address: u64) -> Vec<(String, String)> {
    let mut command = Command::new("addr2line");
    command.args(["--inlines", "--functions", "--exe"]).arg(vmlinux).arg(format!("{address:#x}"));
    let output = child::run(&mut command, Duration::from_secs(60)).unwrap();
    let lines: Vec<&str> = output.stdout.lines().collect();
    let line = |place: &str| place.split(" (discriminator").next().unwrap_or_default().to_owned();
    lines.chunks(2).map(|pair| (pair[0].to_owned(), line(pair[1]))).collect()
}

#[test]
fn agrees_with_binutils_on_each_address_of_a_function() {
    let folder = tempfile::tempdir().unwrap();
    for dwarf in ["-gdwarf-4", "-gdwarf-5"] {
        let path = build(folder.path(), &[dwarf]);
        let sources = fs::canonicalize(folder.path()).unwrap().join("src");
        let vmlinux = Vmlinux::read(&path).unwrap();
        let size = vmlinux.function_sizes().unwrap().0["also_traced"];
        let lines = vmlinux.lines().unwrap().unwrap();
        let start = lines.address("traced").unwrap();
        for address in start..start + size {
            let found =
                lines.find(address).into_iter().map(|SourceLine { function, file, line }| {
                    (function, format!("{}:{line}", sources.join(file).display()))
                });
            let found: Vec<_> = found.collect();
            assert_eq!(found, by_binutils(&path, address), "{dwarf}, {address:#x}");
        }
    }
}

#[test]
fn counts_functions_of_one_name_together_and_aliases_once() {
    let folder = tempfile::tempdir().unwrap();
    let vmlinux = Vmlinux::read(&build(folder.path(), &[])).unwrap();
    let sizes = vmlinux.function_sizes().unwrap().0;
    let names: Vec<&str> = sizes.keys().map(String::as_str).collect();
    assert_eq!(names, ["_start", "also_traced", "same_name"]);
    let elf = vmlinux.elf().unwrap();
    let both = functions(&elf, vmlinux.bytes.len())
        .filter(|one| one.name == "same_name")
        .map(|one| one.size);
    assert_eq!(sizes["same_name"], both.sum::<u64>());
    assert!(vmlinux.lines().unwrap().is_none(), "built without debug information");
}

#[test]
fn keeps_no_data_and_rejects_other_files() {
    let folder = tempfile::tempdir().unwrap();
    let built = build(folder.path(), &["-g", "-Wl,--defsym=x=0"]);
    let kept = folder.path().join("kept");
    copy(&built, &kept).unwrap();
    let [whole, less] = [&built, &kept].map(|path| fs::read(path).unwrap());
    assert_eq!(whole.len(), less.len());
    let has = |bytes: &[u8], text: &[u8]| bytes.windows(text.len()).any(|window| window == text);
    assert!(has(&whole, SECRET) && !has(&less, SECRET));
    // A file that is not ELF, and one that ends early.
    let bad = folder.path().join("bad");
    fs::write(&bad, "no ELF").unwrap();
    assert!(matches!(copy(&bad, &folder.path().join("a")), Err(VmlinuxError::Elf { .. })));
    fs::write(&bad, &whole[..whole.len() / 2]).unwrap();
    assert!(matches!(copy(&bad, &folder.path().join("b")), Err(VmlinuxError::Elf { .. })));
}

/// A program of which a few bytes of debug information take all memory. Its units share one line
/// program. All claim the address of `traced`, and none has a line for it, so that the rows of all
/// are kept while one is looked for.
const BOMB: &str = "\
	.globl traced
	.type traced, @function
traced:	.skip 64
	.size traced, 64

	.section .debug_abbrev
	/* A unit without children: DW_AT_stmt_list, DW_AT_low_pc, DW_AT_high_pc. */
	.byte 1, 0x11, 0, 0x10, 0x17, 0x11, 0x01, 0x12, 0x06, 0, 0, 0

	.section .debug_info
	.rept UNITS
	.long 24
	.short 4
	.long 0
	.byte 8, 1
	.long 0
	.quad traced
	.long 64
	.endr

	.section .debug_line
	.long 4f - 1f
1:	.short 4
	.long 3f - 2f
	/* Of each special opcode: the address grows by 1, and the line by 1. */
2:	.byte 1, 1, 1, 0xfb, 0x0e, 0x0d, 0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1, 0
	.asciz \"f\"
	.byte 0, 0, 0, 0
3:	.byte 0, 9, 2
	.quad traced + 0x1000000
	.fill ROWS, 1, 0x21
	.byte 0, 1, 1
4:
";

#[test]
fn reads_debug_information_with_limited_memory() {
    let folder = tempfile::tempdir().unwrap();
    let [source, path] = ["bomb.s", "vmlinux"].map(|name| folder.path().join(name));
    fs::write(&source, BOMB).unwrap();
    let lines_of = |units: u32, rows: u32| {
        let mut command = Command::new("cc");
        command
            .args(["-nostdlib", "-static", "-Wl,-e,traced"])
            .args([format!("-Wa,--defsym,UNITS={units}"), format!("-Wa,--defsym,ROWS={rows}")])
            .arg(&source)
            .arg("-o")
            .arg(&path);
        child::run(&mut command, Duration::from_secs(60)).unwrap();
        Vmlinux::read(&path).unwrap().lines_of(&[("traced", 0)])
    };
    assert_eq!(lines_of(3, 10).unwrap(), [[]]);
    let large = lines_of(100, 4 << 20);
    assert!(matches!(large, Err(VmlinuxError::Isolated { .. })), "{large:?}");
}

#[test]
fn rejects_files_that_are_too_large() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("vmlinux");
    fs::File::create(&path).unwrap().set_len(MOST + 1).unwrap();
    let error = Vmlinux::read(&path).err().unwrap().to_string();
    assert!(error.contains("it has more than 4 GiB"), "{error}");
}

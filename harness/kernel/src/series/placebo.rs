// SPDX-License-Identifier: MIT OR Apache-2.0
//! Placebo patches add code that nobody calls. They change a measurement only by changing the
//! kernel's layout.

use super::Patch;
use std::{
    fs::OpenOptions,
    io::{self, Write},
    path::Path,
};

/// Files, number of functions, and `nop`s in each. The files are linked early and late, and some
/// have the functions that attach programs. Every kernel since 5.5 has them.
const PLACEBOS: [(&[&str], u32, u32); 6] = [
    (&["kernel/trace/ftrace.c"], 1, 16),
    (&["kernel/bpf/syscall.c"], 16, 64),
    (&["init/main.c"], 1, 8192),
    (&["kernel/bpf/trampoline.c", "mm/util.c"], 4, 1024),
    (&["fs/exec.c"], 64, 16),
    (&["init/main.c", "kernel/bpf/core.c", "kernel/fork.c"], 2, 333),
];

/// The number of placebos.
pub const MOST: usize = PLACEBOS.len();

/// Returns placebo `number`, from 1 to [`MOST`]. Its `diff` is plain code that [`apply`] appends.
pub fn patch(number: usize) -> Patch {
    let (files, functions, nops) = PLACEBOS[number - 1];
    let function = |index: u32| {
        format!(
            "\nstatic noinline __used void tramplab_placebo_{number}_{index}(void)\n{{\n\
             \tasm volatile(\".rept {nops}\\n\\tnop\\n\\t.endr\");\n}}\n"
        )
    };
    Patch {
        number: 1,
        ids: Default::default(),
        subject: format!("placebo {number}"),
        origin: "tramplab's own".to_owned(),
        diff: (0..functions).map(function).collect::<String>().into_bytes(),
        strip: 1,
        reversed: false,
        touched: files.iter().map(Into::into).collect(),
    }
}

/// Appends a placebo to each of its files.
pub fn apply(placebo: &Patch, tree: &Path) -> io::Result<()> {
    for file in &placebo.touched {
        let path = tree.join(file);
        let open = OpenOptions::new().append(true).open(&path);
        open.and_then(|mut source| source.write_all(&placebo.diff)).map_err(|error| {
            io::Error::new(error.kind(), format!("{}: {error}", path.display()))
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn appends_functions_that_differ_by_placebo() {
        let tree = tempfile::tempdir().unwrap();
        for number in 1..=MOST {
            let placebo = patch(number);
            for file in &placebo.touched {
                let path = tree.path().join(file);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, "int before;\n").unwrap();
            }
            apply(&placebo, tree.path()).unwrap();
            for file in &placebo.touched {
                let text = fs::read_to_string(tree.path().join(file)).unwrap();
                let functions = text.matches(&format!("tramplab_placebo_{number}_")).count();
                assert!(
                    text.starts_with("int before;\n")
                        && functions == PLACEBOS[number - 1].1 as usize
                );
            }
        }
        let missing = apply(&patch(1), &tree.path().join("nowhere")).unwrap_err();
        assert!(missing.to_string().contains("kernel/trace/ftrace.c"), "{missing}");
    }
}

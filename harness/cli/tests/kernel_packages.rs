// SPDX-License-Identifier: MIT OR Apache-2.0
//! Boots Debian's kernel, packed as other distributions pack theirs. Needs the network at first,
//! later only the user's cache. No package of these distributions was tried.

use crate::command::{repository, said, stored, tramplab};
use cpio::newc;
use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
};
use tramplab_host::Cache;
use tramplab_kernel as kernel;
use tramplab_model::run::Measurement;
use tramplab_testdata::packed;

/// Paths and contents of a kernel's files.
type Files = Vec<(String, Vec<u8>)>;

/// Those of 6.12, in Fedora's places.
fn files() -> Files {
    let cache = Cache::open(true).unwrap();
    let manifest = kernel::find("6.12", &repository().join("kernels")).unwrap().remove(0);
    let image = kernel::fetch(&manifest, &cache, &mut |_| ()).unwrap();
    let release = image.image.to_str().and_then(|path| path.split("linux-image-").nth(1)).unwrap();
    let release = release.split('=').next().unwrap();
    let file = |name: &str, path: &Path| {
        (format!("lib/modules/{release}/{name}"), fs::read(path).unwrap())
    };
    vec![file("vmlinuz", &image.image), file("config", &image.config_file.unwrap())]
}

fn rpm(files: &Files) -> Vec<u8> {
    let mut archive = Vec::new();
    for (path, content) in files {
        let builder = newc::Builder::new(&format!("./{path}")).mode(0o100_644);
        let mut writer = builder.write(&mut archive, content.len() as u32);
        writer.write_all(content).unwrap();
        writer.finish().unwrap();
    }
    newc::trailer(&mut archive).unwrap();
    packed::rpm(&zstd::encode_all(&*archive, 1).unwrap())
}

fn of_pacman(files: &Files) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for (path, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        archive.append_data(&mut header, format!("usr/{path}"), &**content).unwrap();
    }
    zstd::encode_all(&*archive.into_inner().unwrap(), 1).unwrap()
}

#[test]
#[ignore = "full: four guests; tramplab-kernel's own tests read each format"]
fn a_kernel_wastes_as_many_records_however_it_is_packed() {
    let dir = tempfile::tempdir().unwrap();
    let files = files();
    let unified: Vec<(&[u8], &[u8])> =
        vec![(b".osrel", b"ID=test"), (b".linux", &files[0].1), (b".initrd", b"not used")];
    let write = |name: &str, bytes: &[u8]| -> PathBuf {
        let path = dir.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    write("k.rpm", &rpm(&files));
    write("k.pkg.tar.zst", &of_pacman(&files));
    write("k.efi", &packed::efi(&unified));
    let manifest = |name: &str, source: &str| {
        write(&format!("{name}.yaml"), format!("arch: x86_64\n{source}\n").as_bytes())
    };
    let kernels = [
        PathBuf::from("6.12"),
        manifest("fedora", "packages: [{path: k.rpm}]"),
        manifest("arch", "packages: [{path: k.pkg.tar.zst}]"),
        manifest("unified", "path: {image: k.efi}"),
    ];
    let suite = "name: t\ndescription: d\nkernels: [\"6.12\"]\nmodels: [skylake]\ntests:\n  \
                 - lbr_waste: { mechanisms: [fentry] }\n";
    let mut command = tramplab();
    command.args(["vm-test", "--accel", "tcg", "--arch", "x86_64", "--suite"]);
    command.arg(write("suite.yaml", suite.as_bytes()));
    command.arg("--runs").arg(dir.path().join("runs"));
    for kernel in &kernels {
        command.arg("--kernel").arg(kernel);
    }
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let run = stored(&dir.path().join("runs"));
    let wasted = |name: &str| {
        let is_it = |cell: &&tramplab_model::run::Cell| {
            cell.id.kernel == name && cell.id.test.name() == "lbr_waste/fentry"
        };
        let cell = run.cells.iter().find(is_it).unwrap_or_else(|| panic!("no cell of {name}"));
        let Some(Measurement::LbrWaste(waste)) = &cell.measurement else { panic!("{cell:?}") };
        waste.points[0].wasted["intel-lbr"]["any"].wasted.unwrap()
    };
    let expected = wasted("6.12");
    assert!(expected > 0);
    for name in ["fedora", "arch", "unified"] {
        assert_eq!(wasted(name), expected, "{name}");
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! Manifests as users write them, right and wrong.

use super::*;

fn parsed(text: &str) -> Result<Vec<Manifest>, String> {
    parse(text, Path::new("kernels/some.yaml")).map_err(|error| error.to_string())
}

#[test]
fn reads_each_kind_of_prebuilt_kernel() {
    let debian = |wanted| Source::Debian { wanted, pin: None };
    let sha256 = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";
    let url = format!("arch: x86_64\nurl: {{image: https://x/bzImage, sha256: {sha256}}}\n");
    let packages = format!(
        "arch: arm64\npackages:\n- path: a.rpm\n- {{url: https://x/b.rpm, sha256: {sha256}}}\n"
    );
    for (text, arch, source) in [
        (
            "arch: x86_64\ndebian: {series: \"6.10\", flavour: cloud-amd64}\n",
            Arch::X86_64,
            debian(WantedKernel::Newest {
                series: Some("6.10".into()),
                flavour: "cloud-amd64".into(),
            }),
        ),
        (
            // Unquoted, but still the text and not the number 6.1.
            "arch: arm64\ndebian: {series: 6.10, flavour: arm64}\n",
            Arch::Arm64,
            debian(WantedKernel::Newest { series: Some("6.10".into()), flavour: "arm64".into() }),
        ),
        (
            "arch: x86_64\ndebian: {series: newest, flavour: cloud-amd64}\n",
            Arch::X86_64,
            debian(WantedKernel::Newest { series: None, flavour: "cloud-amd64".into() }),
        ),
        (
            "arch: x86_64\ndebian: {package: linux-binary-7.3-cloud-amd64, version: \
             7.3~rc7-1~exp1}\n",
            Arch::X86_64,
            debian(WantedKernel::Package {
                name: "linux-binary-7.3-cloud-amd64".into(),
                version: Some("7.3~rc7-1~exp1".into()),
            }),
        ),
        (
            "arch: x86_64\npath: {image: ../linux/bzImage, config: /boot/config}\n",
            Arch::X86_64,
            Source::Path {
                image: "kernels/../linux/bzImage".into(),
                vmlinux: None,
                config: Some("/boot/config".into()),
            },
        ),
        (
            &packages,
            Arch::Arm64,
            Source::Packages(vec![
                Place::File("kernels/a.rpm".into()),
                Place::Url(Download { url: "https://x/b.rpm".into(), sha256: sha256.into() }),
            ]),
        ),
        (
            &url,
            Arch::X86_64,
            Source::Url {
                image: Download { url: "https://x/bzImage".into(), sha256: sha256.into() },
                config: None,
            },
        ),
    ] {
        assert_eq!(
            parsed(text),
            Ok(vec![Manifest { name: "some".into(), arch, source, configuration: None }]),
            "{text}"
        );
    }
}

#[test]
fn reads_manifest_for_several_architectures() {
    let debian = |flavour: &str| Source::Debian {
        wanted: WantedKernel::Newest { series: Some("6.12".into()), flavour: flavour.into() },
        pin: None,
    };
    let on = |arch, source| Manifest { name: "some".into(), arch, source, configuration: None };
    for (arch, flavour, expected) in [
        ("x86_64", "cloud", vec![on(Arch::X86_64, debian("cloud-amd64"))]),
        (
            "[x86_64, arm64]",
            "cloud",
            vec![on(Arch::X86_64, debian("cloud-amd64")), on(Arch::Arm64, debian("cloud-arm64"))],
        ),
        ("[arm64]", "cloud-arm64", vec![on(Arch::Arm64, debian("cloud-arm64"))]),
    ] {
        let text = format!("arch: {arch}\ndebian: {{series: \"6.12\", flavour: {flavour}}}\n");
        assert_eq!(parsed(&text), Ok(expected), "{text}");
    }
    let found = parsed("arch: [arm64, x86_64]\npath: {source: ../linux}\n").unwrap();
    assert_eq!(
        found.iter().map(|manifest| manifest.arch).collect::<Vec<_>>(),
        [Arch::Arm64, Arch::X86_64]
    );
    assert_eq!(found[0].source, found[1].source);
}

#[test]
fn reads_each_kind_of_sources() {
    let sha256 = "0".repeat(64);
    let url = format!("tarball: {{url: https://x/y.tar.xz, sha256: {sha256}}}\n");
    let git =
        |repository: &str| Tree::Git { repository: repository.into(), reference: "v6.12".into() };
    let debian = |version: Option<&str>| Tree::DebianSource {
        package: "linux-source-6.12".into(),
        version: version.map(str::to_owned),
        pin: None,
    };
    let newest = Tree::DebianSource { package: NEWEST_SOURCE.into(), version: None, pin: None };
    for (text, tree) in [
        ("debian-source: {package: linux-source}\n", newest),
        ("git: {repository: ../linux, ref: v6.12}\n", git("kernels/../linux")),
        ("git: {repository: /src/linux, ref: v6.12}\n", git("/src/linux")),
        ("git: {repository: https://x/linux, ref: v6.12}\n", git("https://x/linux")),
        ("debian-source: {package: linux-source-6.12}\n", debian(None)),
        (
            "debian-source: {package: linux-source-6.12, version: 6.12.107-1}\n",
            debian(Some("6.12.107-1")),
        ),
        ("tarball: {path: x.tar.xz}\n", Tree::TarballFile("kernels/x.tar.xz".into())),
        (
            &url,
            Tree::TarballUrl(Download { url: "https://x/y.tar.xz".into(), sha256: sha256.clone() }),
        ),
        ("path: {source: ../linux}\n", Tree::Folder("kernels/../linux".into())),
    ] {
        let clang = Toolchain { version: Some("19".into()), ..Compiler::Clang.into() };
        let config = vec!["kernels/a.config".into(), "/b.config".into()];
        for (more, toolchain, config) in [
            ("", Toolchain::default(), vec![]),
            ("toolchain: clang-19\nconfig: [a.config, /b.config]\n", clang, config),
        ] {
            let recipe =
                Recipe { tree: tree.clone(), toolchain, config, variation: Variation::default() };
            let source = Source::Built(recipe);
            let expected =
                Manifest { name: "some".into(), arch: Arch::X86_64, source, configuration: None };
            assert_eq!(
                parsed(&format!("arch: x86_64\n{text}{more}")),
                Ok(vec![expected]),
                "{text}{more}"
            );
        }
    }
}

#[test]
fn parses_and_formats_toolchains() {
    for text in ["gcc", "gcc-13", "clang", "clang-19", "debian-12/gcc", "debian-13/clang-19"] {
        assert_eq!(text.parse::<Toolchain>().unwrap().to_string(), text);
    }
    for text in [
        "",
        "GCC",
        "gcc-",
        "gcc-x",
        "gcc-13-1",
        "gcc-1300",
        "clang-../x",
        "/gcc",
        "debian-/gcc",
        "debian-13/",
        "debian-13",
        "debian-trixie/gcc",
        "debian-13/x/gcc",
        "../debian-13/gcc",
    ] {
        assert_eq!(text.parse::<Toolchain>(), Err(BadToolchain(text.to_owned())));
    }
}

#[test]
fn errors_name_place_and_expectation() {
    const ONE_SOURCE: &str = "exactly one source, expected one of debian, path, url, packages, \
                              git, debian-source, tarball";
    let file = format!("url: {{image: ./bzImage, sha256: {}}}", "0".repeat(64));
    for (text, place, words) in [
        ("", "1:1", "unexpected end of file"),
        ("arch: x86_64", "1:7", ONE_SOURCE),
        ("debian: {series: newest, flavour: amd64}\npath: {image: x}", "3:7", ONE_SOURCE),
        ("packages: [{path: a.rpm}]\npath: {image: x}", "2:11", ONE_SOURCE),
        ("packages: []", "2:11", "expected 1 to 16 packages"),
        ("packages: [{url: https://x/a.rpm}]", "2:18", "expected sha256 as well"),
        ("packages: [{path: a, url: b}]", "2:12", "expected either path, or url and sha256"),
        ("arch: mips\ndebian: {series: newest, flavour: amd64}", "1:7", "x86_64, arm64"),
        ("arch: [mips]\ndebian: {series: newest, flavour: amd64}", "1:7", "x86_64, arm64"),
        ("arch: []\ndebian: {series: newest, flavour: amd64}", "1:1", "x86_64, arm64"),
        ("arch: 5\ndebian: {series: newest, flavour: amd64}", "1:1", "x86_64, arm64"),
        (
            "arch: [arm64, arm64]\ndebian: {series: newest, flavour: cloud}",
            "1:7",
            "arm64 is named twice",
        ),
        (
            "arch: [x86_64, arm64]\ndebian: {series: newest, flavour: amd64}",
            "2:35",
            "expected a flavour for arm64: arm64 or cloud-arm64, or cloud for any architecture",
        ),
        (
            "arch: [x86_64, arm64]\ndebian: {package: linux-image-6.1.0-50-amd64}",
            "2:19",
            "expected a package with a kernel for arm64",
        ),
        ("arch: [x86_64, arm64]\npath: {image: x}", "1:7", "an image has one architecture"),
        (
            "debain: {}",
            "2:1",
            "expected one of arch, debian, path, url, packages, git, debian-source, tarball",
        ),
        ("debian: {serie: newest}", "2:10", "expected one of series, flavour, package, version"),
        ("debian: {}", "2:9", "expected either series and flavour, or package"),
        (
            "debian: {series: \"6\", flavour: amd64}",
            "2:18",
            "expected a series such as \"6.12\", or newest",
        ),
        ("debian: {series: \"6.12\"}", "2:18", "expected flavour as well"),
        ("debian: {flavour: amd64}", "2:19", "expected series as well"),
        (
            "arch: arm64\ndebian: {series: \"6.12\", flavour: cloud-amd64}",
            "2:35",
            "expected a flavour for arm64: arm64 or cloud-arm64",
        ),
        ("debian: {version: \"1\"}", "2:19", "expected package as well"),
        ("debian: {package: linux-image-amd64}", "2:19", "expected a package with one kernel"),
        (
            "debian: {package: linux-image-6.1.0-50-amd64, flavour: amd64}",
            "2:9",
            "expected either series and flavour, or package",
        ),
        (
            "path: {vmlinux: x}",
            "2:7",
            "expected either image (and perhaps vmlinux and config), or source",
        ),
        ("path: {source: x, config: y}", "2:7", "expected only source"),
        ("path: {source: x, image: y}", "2:7", "expected either image"),
        ("git: {repository: ../linux}", "2:7", "missing field `ref`"),
        ("git: {repository: ../linux, ref: --all}", "2:34", "expected a branch, a tag or a commit"),
        (
            "git: {repository: ext::sh://x, ref: v1}",
            "2:19",
            "a URL that starts with one of https://",
        ),
        ("debian-source: {package: linux-sources}", "2:26", "such as linux-source-6.12"),
        (
            "debian-source: {package: linux-source-6.12, version: ../x}",
            "2:54",
            "expected a version of Debian's",
        ),
        ("tarball: {}", "2:10", "expected either path, or url and sha256"),
        ("tarball: {url: https://x/y}", "2:16", "expected sha256 as well"),
        ("tarball: {path: x, sha256: y}", "2:28", "a file on this machine is taken as it is"),
        ("toolchain: icc\npath: {source: x}", "2:12", "no toolchain `icc`: expected gcc or clang"),
        ("toolchain: gcc-13/x\npath: {source: x}", "2:12", "no toolchain `gcc-13/x`"),
        ("toolchain: gcc\npath: {image: x}", "2:12", "this kernel is not built here"),
        (
            "debian: {series: newest, flavour: amd64}\nconfig: [x]",
            "3:9",
            "this kernel is not built here",
        ),
        ("config: x\npath: {source: x}", "2:9", ""),
        (
            "url: {image: https://x/bzImage, sha256: 58AB}",
            "2:41",
            "expected a SHA-256: 64 lower-case hexadecimal digits",
        ),
        (&file, "2:14", "expected a URL that starts with https:// or http://"),
    ] {
        let of_x86 = !text.is_empty() && !text.starts_with("arch:");
        let text = if of_x86 { "arch: x86_64\n" } else { "" }.to_owned() + text;
        let error = parsed(&text).unwrap_err();
        let start = format!("kernels/some.yaml:{place}: ");
        assert!(
            error.starts_with(&start) && error.contains(words),
            "{text}\nexpected {start}… {words}\ngot {error}"
        );
    }
    let error =
        parse("arch: x86_64\npath: {image: x}\n", Path::new("a b.yaml")).unwrap_err().to_string();
    assert!(error.contains("the file's name is the kernel's"), "{error}");
}

#[test]
fn reads_pins_and_rejects_those_of_other_kernels() {
    let time = "20261030T120000Z";
    let file = |name: &str| {
        let hash: u64 = name.bytes().map(u64::from).sum();
        format!("{{path: pool/main/l/{name}.deb, size: 7, sha256: {hash:064x}}}")
    };
    let image =
        |arch: &str| file(&format!("linux-image-6.12.9+deb13-cloud-{arch}_6.12.9-1_{arch}"));
    let source = file("linux-source-6.12_6.12.9-1_all");
    let with = |head: &str, time: &str, files: &[String]| {
        parsed(&format!("{head}pin: {{snapshot: {time}, files: [{}]}}\n", files.join(", ")))
    };
    let both = "arch: [x86_64, arm64]\ndebian: {series: 6.12, flavour: cloud}\n";
    let sources = "arch: x86_64\ndebian-source: {package: linux-source-6.12}\n";
    let files = [image("amd64"), image("arm64"), source.clone()];
    let found = with(both, time, &files).unwrap();
    for (manifest, arch) in found.iter().zip(["amd64", "arm64"]) {
        let Source::Debian { pin: Some(pin), .. } = &manifest.source else { panic!("{found:?}") };
        let names: Vec<_> = pin.files.iter().map(|file| file.name()).collect();
        assert_eq!(names, [format!("linux-image-6.12.9+deb13-cloud-{arch}_6.12.9-1_{arch}.deb")]);
        assert_eq!((pin.files[0].size, pin.snapshot.as_str()), (7, time));
    }
    let found = with(sources, time, &files).unwrap();
    let Source::Built(Recipe { tree: Tree::DebianSource { pin: Some(pin), .. }, .. }) =
        &found[0].source
    else {
        panic!("{found:?}")
    };
    assert_eq!(pin.packages().next().unwrap().name, "linux-source-6.12");

    let versioned = sources.replace("6.12}", "6.12, version: 6.12.8-1}");
    let git = "arch: x86_64\ngit: {repository: ., ref: v6.12}\n";
    for (head, time, files, expected) in [
        (both, time, &files[..1], "expected packages of this kernel for arm64"),
        (both, time, std::slice::from_ref(&source), "expected packages of this kernel for amd64"),
        (&both.replace("6.12", "6.1"), time, &files, "expected packages of this kernel for amd64"),
        (sources, time, &files[..2], "expected packages of this kernel for all"),
        (&versioned, time, &files, "expected packages of this kernel for all"),
        (both, "yesterday", &files, "expected a time such as 20261030T120000Z"),
        (both, "20261030T12000Z", &files, "expected a time"),
        (both, "20269930T120000Z", &files, "expected a time"),
        (
            both,
            time,
            &[image("amd64"), file("linux-modules-6.12.9_6.12.8-1_amd64"), image("arm64")],
            "expected one version of all packages",
        ),
        (both, time, &[file("../etc/passwd_1_all")], "expected a package of Debian"),
        (sources, time, &[source.clone(), source.clone()], "expected each package once"),
        (sources, time, &vec![source.clone(); 65], "expected at most 64 packages"),
        (git, time, &files, "expected it only with debian or debian-source"),
    ] {
        let error = with(head, time, files).unwrap_err();
        assert!(error.contains(expected), "{head} {time} {files:?}: {error}");
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! The package managers of distributions, and their names of Debian's packages.

use super::program::in_path;
use std::{collections::BTreeSet, fs};

struct Manager {
    program: &'static str,
    /// As `ID` and `ID_LIKE` of os-release(5) call them.
    distributions: &'static [&'static str],
    as_root: &'static str,
    install: &'static str,
}

const APT: &str = "apt-get";

/// In the order of the table's columns.
#[rustfmt::skip]
const MANAGERS: [Manager; 6] = [
    manager(APT, &["debian", "ubuntu"], "sudo ", "apt-get install --no-install-recommends"),
    manager("dnf", &["fedora", "rhel", "centos"], "sudo ", "dnf install"),
    manager("zypper", &["opensuse", "suse", "sles"], "sudo ", "zypper install"),
    manager("pacman", &["arch"], "sudo ", "pacman -S --needed"),
    manager("apk", &["alpine"], "doas ", "apk add"),
    manager("nix-shell", &["nixos"], "", "nix-shell -p"),
];

const fn manager(
    program: &'static str,
    distributions: &'static [&'static str],
    as_root: &'static str,
    install: &'static str,
) -> Manager {
    Manager { program, distributions, as_root, install }
}

/// Debian's name of a package, then those of dnf, zypper, pacman, apk and nix. A comma joins two
/// packages; `-` means that the distribution has none.
const TABLE: &str = "
autoconf        autoconf      autoconf      autoconf   autoconf    autoconf
automake        automake      automake      automake   automake    automake
autopoint       gettext-devel gettext-tools gettext    gettext-dev gettext
b4              b4            b4            b4         b4          b4
bc              bc            bc            bc         bc          bc
binutils        binutils      binutils      binutils   binutils    binutils
bison           bison         bison         bison      bison       bison
bubblewrap      bubblewrap    bubblewrap    bubblewrap bubblewrap  bubblewrap
chromium        chromium      chromium      chromium   chromium    chromium
chromium-driver chromedriver  chromedriver  chromium   chromium-chromedriver chromedriver
clang           clang         clang         clang      clang       llvmPackages.clang-unwrapped
dwarves         dwarves       dwarves       pahole     pahole      pahole
faketime        libfaketime   libfaketime   libfaketime libfaketime libfaketime
flex            flex          flex          flex       flex        flex
gawk            gawk          gawk          gawk       gawk        gawk
gcc             gcc           gcc           gcc        gcc         gcc
gettext         gettext       gettext-tools gettext    gettext     gettext
git             git           git           git        git         git
gpgv            /usr/bin/gpgv gpg2          gnupg      gnupg       gnupg
gzip            gzip          gzip          gzip       gzip        gzip
libc6-dev       glibc-static  glibc-devel-static glibc linux-headers,musl-dev glibc.static
libelf-dev      elfutils-libelf-devel libelf-devel libelf elfutils-dev elfutils
libssl-dev      openssl-devel libopenssl-devel openssl openssl-dev openssl
lld             lld           lld           lld        lld         lld
llvm            llvm          llvm          llvm       llvm        llvm
make            make          make          make       make        gnumake
munge           munge         munge         munge      -           munge
perl            perl          perl          perl       perl        perl
pkg-config      pkgconf-pkg-config pkg-config pkgconf  pkgconf     pkg-config
python3         python3       python3       python     python3     python3
python3-pip     python3-pip   python3-pip   python-pip py3-pip     python3Packages.pip
rsync           rsync         rsync         rsync      rsync       rsync
slurm-client    slurm         slurm         -          -           slurm
slurmctld       slurm-slurmctld slurm       -          -           slurm
slurmd          slurm-slurmd  slurm-node    -          -           slurm
tar             tar           tar           tar        tar         gnutar
util-linux      util-linux    util-linux    util-linux util-linux-misc,setpriv util-linux
valgrind        valgrind      valgrind      valgrind   valgrind    valgrind
xz-utils        xz            xz            xz         xz          xz
zlib1g-dev      zlib-devel    zlib-devel    zlib       zlib-dev    zlib
zstd            zstd          zstd          zstd       zstd        zstd
binutils-aarch64-linux-gnu binutils-aarch64-linux-gnu - aarch64-linux-gnu-binutils - -
gcc-aarch64-linux-gnu      gcc-aarch64-linux-gnu      - aarch64-linux-gnu-gcc      - -
libc6-dev-arm64-cross      -                          - aarch64-linux-gnu-glibc    - -
binutils-x86-64-linux-gnu  binutils-x86_64-linux-gnu  - -                          - -
gcc-x86-64-linux-gnu       gcc-x86_64-linux-gnu       - -                          - -
libc6-dev-amd64-cross      -                          - -                          - -
";

/// True if the table has this package of Debian.
pub fn is_listed(package: &str) -> bool {
    row(package).is_some()
}

fn row(package: &str) -> Option<Vec<&'static str>> {
    let rows = TABLE.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    rows.into_iter().find(|row| row.first() == Some(&package))
}

/// True if packages are installed with apt, the only manager that we run.
pub fn is_apt() -> bool {
    of_host().is_some_and(|manager| manager.program == APT)
}

/// The command for a person that installs these packages of Debian, by this distribution's names.
pub fn install_line(packages: &[&str]) -> String {
    line(of_host(), nix::unistd::geteuid().is_root(), packages)
}

fn of_host() -> Option<&'static Manager> {
    let release = ["/etc/os-release", "/usr/lib/os-release"].map(fs::read_to_string);
    let release = release.into_iter().flatten().next().unwrap_or_default();
    of(&release, |program| in_path(program).is_some())
}

/// The manager of the distribution, else any that is there.
fn of(release: &str, has: impl Fn(&str) -> bool) -> Option<&'static Manager> {
    let field = |key: &str| {
        let value = release.lines().find_map(|line| line.strip_prefix(key));
        value.unwrap_or_default().trim_matches(['"', '\'']).split(' ')
    };
    let own = field("ID=").chain(field("ID_LIKE="));
    let own = own.flat_map(|id| MANAGERS.iter().find(|one| one.distributions.contains(&id)));
    own.chain(&MANAGERS).find(|manager| has(manager.program))
}

fn line(manager: Option<&Manager>, is_root: bool, packages: &[&str]) -> String {
    let Some(manager) = manager else {
        return format!("install the equivalents of Debian's packages {}", packages.join(" "));
    };
    let column = MANAGERS.iter().position(|one| one.program == manager.program).expect("one of us");
    let (mut known, mut unknown) = (BTreeSet::new(), Vec::new());
    for &package in packages {
        match row(package).map(|row| row[column]) {
            _ if manager.program == APT => drop(known.insert(package)),
            Some(names) if names != "-" => known.extend(names.split(',')),
            _ => unknown.push(package),
        }
    }
    let mut words = Vec::new();
    if !known.is_empty() {
        let as_root = if is_root { "" } else { manager.as_root };
        let known = Vec::from_iter(known).join(" ");
        words.push(format!("{as_root}{} {known}", manager.install));
    }
    if !unknown.is_empty() {
        words.push(format!("# no known package like Debian's {}", unknown.join(", ")));
    }
    words.join("  ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [&str; 6] = ["apt-get", "dnf", "zypper", "pacman", "apk", "nix-shell"];

    #[test]
    fn rows_are_complete_and_unique() {
        let rows: Vec<_> = TABLE.trim().lines().collect();
        for row in &rows {
            assert_eq!(row.split_whitespace().count(), MANAGERS.len(), "{row}");
        }
        let names: BTreeSet<_> = rows.iter().map(|row| row.split(' ').next()).collect();
        assert_eq!(names.len(), rows.len());
    }

    #[test]
    fn finds_the_manager_of_a_distribution() {
        for (release, programs, expected) in [
            ("ID=debian\n", &ALL[..], Some("apt-get")),
            (
                "NAME=\"Linux Mint\"\nID=linuxmint\nID_LIKE=\"ubuntu debian\"\n",
                &ALL,
                Some("apt-get"),
            ),
            // Fedora packages apt, too.
            ("ID=fedora\n", &ALL, Some("dnf")),
            ("ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n", &ALL, Some("dnf")),
            ("ID=\"opensuse-tumbleweed\"\nID_LIKE=\"opensuse suse\"\n", &ALL, Some("zypper")),
            ("ID=manjaro\nID_LIKE=arch\n", &ALL, Some("pacman")),
            ("ID=alpine\n", &ALL, Some("apk")),
            ("ID=nixos\nID_LIKE=\"\"\n", &ALL, Some("nix-shell")),
            // Another manager than the distribution's.
            ("ID=debian\n", &["nix-shell"], Some("nix-shell")),
            ("ID=gentoo\n", &["emerge"], None),
            ("", &["pacman"], Some("pacman")),
            ("", &[], None),
        ] {
            let found = of(release, |program| programs.contains(&program));
            assert_eq!(found.map(|manager| manager.program), expected, "{release}");
        }
    }

    #[test]
    fn lines_have_the_names_of_the_distribution() {
        let packages =
            ["clang-19", "dwarves", "libc6-dev", "libc6-dev-arm64-cross", "libelf-dev", "make"];
        let of = |id: &str| of(&format!("ID={id}"), |_| id != "gentoo");
        for row in [
            "ubuntu: sudo apt-get install --no-install-recommends clang-19 dwarves libc6-dev \
             libc6-dev-arm64-cross libelf-dev make",
            "fedora: sudo dnf install dwarves elfutils-libelf-devel glibc-static make  \
             # no known package like Debian's clang-19, libc6-dev-arm64-cross",
            "opensuse: sudo zypper install dwarves glibc-devel-static libelf-devel make  \
             # no known package like Debian's clang-19, libc6-dev-arm64-cross",
            "arch: sudo pacman -S --needed aarch64-linux-gnu-glibc glibc libelf make pahole  \
             # no known package like Debian's clang-19",
            "alpine: doas apk add elfutils-dev linux-headers make musl-dev pahole  \
             # no known package like Debian's clang-19, libc6-dev-arm64-cross",
            "nixos: nix-shell -p elfutils glibc.static gnumake pahole  \
             # no known package like Debian's clang-19, libc6-dev-arm64-cross",
            "gentoo: install the equivalents of Debian's packages clang-19 dwarves libc6-dev \
             libc6-dev-arm64-cross libelf-dev make",
        ] {
            let (id, expected) = row.split_once(": ").unwrap();
            assert_eq!(line(of(id), false, &packages), expected);
        }
        assert_eq!(line(of("fedora"), true, &["git"]), "dnf install git");
        assert_eq!(
            line(of("fedora"), true, &["lld-19"]),
            "# no known package like Debian's lld-19"
        );
    }
}

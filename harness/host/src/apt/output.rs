// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads what apt prints.

use super::{AptError, Package};
use crate::child::Output;
use std::collections::BTreeSet;

/// The suites that `apt-get update` fetched, and its errors and warnings.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answers {
    pub answered: BTreeSet<String>,
    pub messages: Vec<String>,
}

/// Reads lines such as `Get:1 http://deb.debian.org/debian trixie InRelease [140 kB]` and
/// `Err:6 http://deb.debian.org/debian sid/main amd64 Packages`. After an `Ign:` line apt tries
/// something else. A suite whose release file has expired has only an `E:` line, on standard error.
pub(super) fn answers(update: &Output) -> Answers {
    let suites = |tags: &[&str]| -> BTreeSet<String> {
        let suite = |line: &str| {
            let mut words = line.split(' ');
            let tag = words.next()?.split_once(':')?.0;
            let place = words.nth(1)?;
            tags.contains(&tag).then(|| place.split('/').next().unwrap_or(place).to_owned())
        };
        update.stdout.lines().filter_map(suite).collect()
    };
    let messages = update.stderr.lines();
    let messages: Vec<String> = messages
        .filter(|line| line.starts_with("E:") || line.starts_with("W:"))
        // apt 3 warns of our own setting, which apt 2 needs.
        .filter(|line| !line.contains("deprecated option Dir::Etc::Trusted"))
        .map(str::to_owned)
        .collect();
    let names = |message: &String, suite: &str| {
        message.starts_with("E:") && message.split([' ', '/', '\'']).any(|word| word == suite)
    };
    let mut answered = &suites(&["Hit", "Get"]) - &suites(&["Err"]);
    answered.retain(|suite| !messages.iter().any(|message| names(message, suite)));
    Answers { answered, messages }
}

/// Reads the packages of apt's plan: `Inst libc6 (2.41-12+deb13u4 Debian:13.7/stable [amd64])`
/// gives `libc6=2.41-12+deb13u4`.
pub(super) fn installed(plan: &str) -> Vec<String> {
    let exact = |line: &str| -> Option<String> {
        let mut words = line.strip_prefix("Inst ")?.split_whitespace();
        let name = words.next()?;
        let version = words.find_map(|word| word.strip_prefix('('))?;
        Some(format!("{name}={version}"))
    };
    plan.lines().filter_map(exact).collect()
}

/// Reads what `apt-cache show` prints.
pub(super) fn packages(text: &str) -> Result<Vec<Package>, AptError> {
    let field = |stanza: &str, field: &'static str| {
        let line = stanza.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(": "));
        let package = || stanza.lines().next().unwrap_or_default().to_owned();
        line.map(|value| value.trim().to_owned())
            .ok_or_else(|| AptError::Format { package: package(), field })
    };
    text.split("\n\n")
        .map(str::trim)
        .filter(|stanza| !stanza.is_empty())
        .map(|stanza| {
            let number = |name| {
                field(stanza, name).ok().and_then(|value| value.parse::<u64>().ok()).unwrap_or(0)
            };
            Ok(Package {
                // Debian counts installed sizes in KiB.
                room: number("Size") + number("Installed-Size") * 1024,
                name: field(stanza, "Package")?,
                version: field(stanza, "Version")?,
                architecture: field(stanza, "Architecture")?,
                sha256: field(stanza, "SHA256")?,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// apt 2.6 printed this for a suite that does not exist and for a host that does not. The
    /// lines of bookworm, trixie and forky are added: one is up to date, one failed, one expired.
    #[test]
    fn separates_suites_that_answer_from_those_that_fail() {
        let stdout = "\
Ign:1 http://no-such-host.invalid/debian sid InRelease
Ign:2 http://deb.debian.org/debian nosuch InRelease
Get:3 http://deb.debian.org/debian experimental InRelease [91.7 kB]
Hit:7 http://deb.debian.org/debian bookworm InRelease
Get:6 http://deb.debian.org/debian forky InRelease [151 kB]
Err:4 http://deb.debian.org/debian nosuch Release
  404  Not Found [IP: 203.0.113.80 80]
Get:5 http://deb.debian.org/debian experimental/main amd64 Packages [365 kB]
Ign:1 http://no-such-host.invalid/debian sid InRelease
Err:1 http://no-such-host.invalid/debian sid InRelease
  Could not resolve 'no-such-host.invalid'
Get:8 http://deb.debian.org/debian trixie InRelease [140 kB]
Err:9 http://deb.debian.org/debian trixie/main amd64 Packages
  404  Not Found [IP: 203.0.113.80 80]
Fetched 9818 kB in 2s (4909 kB/s)
Reading package lists...
";
        let expired = "E: Release file for http://deb.debian.org/debian/dists/forky/InRelease is \
                       expired (invalid since 20d 5h 5min 46s). Updates for this repository will \
                       not be applied.";
        let warning = "W: Target Packages (bookworm) is configured multiple times";
        let ours = "W: http://deb.debian.org/debian/dists/trixie/InRelease: Loading /dev/null from \
                    deprecated option Dir::Etc::Trusted";
        let stderr = format!("{ours}\n{expired}\n{warning}\n");
        let update = Output { stdout: stdout.into(), stderr };
        let expected = Answers {
            answered: ["bookworm", "experimental"].map(str::to_owned).into(),
            messages: vec![expired.to_owned(), warning.to_owned()],
        };
        assert_eq!(answers(&update), expected);
        let silent = Output { stdout: String::new(), stderr: String::new() };
        assert_eq!(answers(&silent), Answers { answered: BTreeSet::new(), messages: vec![] });
    }

    #[test]
    fn reads_each_package_of_a_plan_with_its_version() {
        let plan = "Inst gcc-14-base (14.2.0-19 Debian:13.7/stable [amd64]) []\n\
                    Inst libc6 [2.36-9] (2.41-12+deb13u4 Debian:13.7/stable [amd64])\n\
                    Inst libaio1t64 (0.3.113-8+b1 Debian:13.7/stable [amd64])\n\
                    Conf libc6 (2.41-12+deb13u4 Debian:13.7/stable [amd64])\n";
        assert_eq!(
            installed(plan),
            ["gcc-14-base=14.2.0-19", "libc6=2.41-12+deb13u4", "libaio1t64=0.3.113-8+b1"]
        );
    }

    const SHOWN: &str = "\
Package: linux-binary-7.3-cloud-amd64
Source: linux-signed-amd64 (7.3~rc7+1~exp1)
Version: 7.3~rc7-1~exp1
Installed-Size: 13876
Architecture: amd64
Depends: linux-base-7.3-cloud-amd64 (= 7.3~rc7-1~exp1)
Description: Linux 7.3-rc7 for x86-64 cloud (kernel image)
 The Linux kernel 7.3-rc7 for use on cloud platforms.
Filename: pool/main/l/linux-signed-amd64/linux-binary-7.3-cloud-amd64_7.3~rc7-1~exp1_amd64.deb
Size: 13885624
SHA256: f607118da820d8ba7f06826bff27e84a30b95dbd4a9bdb646f38d8481b1e4268

Package: qemu-system-x86
Version: 1:10.0.13+ds-0+deb13u1
Architecture: amd64
SHA256: 0000000000000000000000000000000000000000000000000000000000000000
";

    #[test]
    fn reads_packages_with_checksums_and_file_names() {
        let packages = packages(SHOWN).unwrap();
        let files: Vec<_> = packages.iter().map(Package::file).collect();
        assert_eq!(
            files,
            [
                "linux-binary-7.3-cloud-amd64_7.3~rc7-1~exp1_amd64.deb",
                "qemu-system-x86_1%3a10.0.13+ds-0+deb13u1_amd64.deb"
            ]
        );
        assert!(packages[0].sha256.starts_with("f607118d"));
        assert_eq!(packages[0].room, 13_885_624 + 13_876 * 1024);
        let error = super::packages("Package: foo\nVersion: 1\n").unwrap_err().to_string();
        assert_eq!(error, "failed to read apt's description of Package: foo: no Architecture");
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checks signatures by OpenPGP, with the keys that we ship.
//!
//! A package of tramplab checks them in process, by rpgp. That takes 98 crates and half a minute of
//! compiling, so a program built from the repository runs the host's `sqv` or `gpgv` instead.

use crate::{ArchiveError, release::ClearSigned};
use std::{
    env,
    ffi::OsStr,
    fs, io,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    process::{Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Debian's archive keys: `keys/README.md`.
pub(crate) const DEBIAN: &[u8] = include_bytes!("keys/debian-archive-keyring.pgp");

const LIMIT: Duration = Duration::from_secs(60);

/// The name or path of this program's verifier.
pub fn verifier() -> Result<String, ArchiveError> {
    Ok(match Verifier::of_host()? {
        #[cfg(any(test, feature = "openpgp"))]
        Verifier::Library => "rpgp".to_owned(),
        Verifier::Sqv(program) | Verifier::Gpgv(program) => program.display().to_string(),
    })
}

#[derive(Clone, Debug)]
pub(crate) enum Verifier {
    #[cfg(any(test, feature = "openpgp"))]
    Library,
    #[cfg_attr(feature = "openpgp", allow(dead_code))]
    Sqv(PathBuf),
    #[cfg_attr(feature = "openpgp", allow(dead_code))]
    Gpgv(PathBuf),
}

impl Verifier {
    #[cfg(feature = "openpgp")]
    pub fn of_host() -> Result<Verifier, ArchiveError> {
        Ok(Verifier::Library)
    }

    #[cfg(not(feature = "openpgp"))]
    pub fn of_host() -> Result<Verifier, ArchiveError> {
        let path = env::var_os("PATH").unwrap_or_default();
        let sqv = in_path("sqv", &path).map(Verifier::Sqv);
        sqv.or_else(|| in_path("gpgv", &path).map(Verifier::Gpgv)).ok_or(ArchiveError::NoVerifier)
    }

    /// Succeeds if a key of the keyring made a valid signature. Fails with the reason.
    pub fn verify(&self, message: &ClearSigned, keyring: &[u8]) -> Result<(), String> {
        match self {
            #[cfg(any(test, feature = "openpgp"))]
            Verifier::Library => library::verify(message, keyring),
            Verifier::Sqv(program) => {
                let output = run(Command::new(program), message, keyring)?;
                if output.status.success() { Ok(()) } else { Err(reason(&output)) }
            }
            Verifier::Gpgv(program) => {
                let mut command = Command::new(program);
                command.args(["--status-fd", "1", "--weak-digest", "SHA1"]);
                // It also fails if one of several signatures is by a key that we do not have.
                let output = run(command, message, keyring)?;
                let status = String::from_utf8_lossy(&output.stdout);
                let has = |word: &str| {
                    status.lines().any(|line| line.starts_with(&format!("[GNUPG:] {word} ")))
                };
                // An expired key gives EXPKEYSIG and VALIDSIG.
                let good = has("GOODSIG") && has("VALIDSIG") && !has("BADSIG");
                if good { Ok(()) } else { Err(reason(&output)) }
            }
        }
    }
}

fn reason(output: &Output) -> String {
    format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim())
}

/// Gives the program its files. Kills it after the limit.
fn run(mut command: Command, message: &ClearSigned, keyring: &[u8]) -> Result<Output, String> {
    let program = command.get_program().display().to_string();
    let mut done = move || -> io::Result<Output> {
        let folder = tempfile::tempdir()?;
        let path = |name: &str| folder.path().join(name);
        let file = |name: &str, bytes: &[u8]| fs::write(path(name), bytes).map(|()| path(name));
        command.arg("--keyring").arg(file("keyring.pgp", keyring)?);
        command.arg(file("signature.asc", message.signature.as_bytes())?);
        command.arg(file("text", message.text.as_bytes())?);
        // A full pipe would block it.
        command.stdout(fs::File::create(path("stdout"))?);
        command.stderr(fs::File::create(path("stderr"))?);
        // gpgv reads no configuration there.
        command.stdin(Stdio::null()).env("GNUPGHOME", folder.path()).env("LC_ALL", "C");
        let mut child = command.spawn()?;
        let start = Instant::now();
        while let Ok(None) = child.try_wait()
            && start.elapsed() < LIMIT
        {
            thread::sleep(Duration::from_millis(5));
        }
        let _ = child.kill();
        let status = child.wait()?;
        let (stdout, stderr) = (fs::read(path("stdout"))?, fs::read(path("stderr"))?);
        Ok(Output { status, stdout, stderr })
    };
    done().map_err(|error| format!("failed to run {program}: {error}"))
}

/// Finds an executable file in the absolute folders of `PATH`.
#[cfg_attr(feature = "openpgp", allow(dead_code))]
pub(crate) fn in_path(program: &str, path: &OsStr) -> Option<PathBuf> {
    let folders = env::split_paths(path).filter(|folder| folder.is_absolute());
    folders.map(|folder| folder.join(program)).find(|path| {
        let is_program =
            |found: fs::Metadata| found.is_file() && found.permissions().mode() & 0o111 != 0;
        fs::metadata(path).is_ok_and(is_program)
    })
}

/// rpgp checks the mathematics; whether a key is in force is checked here.
#[cfg(any(test, feature = "openpgp"))]
mod library {
    use super::ClearSigned;
    use pgp::{
        composed::{Deserializable, DetachedSignature, SignedPublicKey},
        crypto::hash::HashAlgorithm,
        packet::{Signature, SignatureType},
        types::{Duration, KeyDetails, Tag, Timestamp, VerifyingKey},
    };

    pub fn verify(message: &ClearSigned, keyring: &[u8]) -> Result<(), String> {
        let text = |error: pgp::errors::Error| error.to_string();
        let keys = SignedPublicKey::from_bytes_many(keyring).map_err(text)?;
        let keys: Vec<_> = keys.collect::<Result<_, _>>().map_err(text)?;
        let (signatures, _) =
            DetachedSignature::from_armor_many(message.signature.as_bytes()).map_err(text)?;
        let mut reasons = Vec::new();
        for signature in signatures {
            let signature = signature.map_err(text)?.signature;
            match signed_by(&signature, &keys, message.text.as_bytes()) {
                Ok(()) => return Ok(()),
                Err(reason) => reasons.push(reason),
            }
        }
        Err(reasons.join("; "))
    }

    fn signed_by(
        signature: &Signature,
        keys: &[SignedPublicKey],
        text: &[u8],
    ) -> Result<(), String> {
        let strong = [HashAlgorithm::Sha256, HashAlgorithm::Sha384, HashAlgorithm::Sha512];
        if !signature.hash_alg().is_some_and(|hash| strong.contains(&hash)) {
            return Err(format!("a signature with the hash {:?}", signature.hash_alg()));
        }
        // rpgp checks only the first byte of some other types.
        if !matches!(signature.typ(), Some(SignatureType::Binary | SignatureType::Text)) {
            return Err(format!("a signature of the type {:?}", signature.typ()));
        }
        let lasts = signature.signature_expiration_time();
        if signature.created().is_none_or(|created| is_over(created, lasts)) {
            return Err("a signature that has expired".to_owned());
        }
        let names = |key: &dyn KeyDetails| {
            signature.issuer_fingerprint().contains(&&key.fingerprint())
                || signature.issuer_key_id().contains(&&key.legacy_key_id())
        };
        for key in keys {
            let primary = &key.primary_key;
            if names(primary) {
                in_force(key, None)?;
                return check(signature, primary, text);
            }
            for (index, subkey) in key.public_subkeys.iter().enumerate() {
                if names(&subkey.key) {
                    in_force(key, Some(index))?;
                    return check(signature, &subkey.key, text);
                }
            }
        }
        Err(format!("no key with the id {:?}", signature.issuer_key_id()))
    }

    fn check(signature: &Signature, key: &impl VerifyingKey, text: &[u8]) -> Result<(), String> {
        signature.verify(key, text).map_err(|error| error.to_string())
    }

    /// A key or subkey that may sign, is bound, and has neither expired nor been revoked.
    fn in_force(key: &SignedPublicKey, subkey: Option<usize>) -> Result<(), String> {
        let primary = &key.primary_key;
        let id = primary.legacy_key_id();
        let fault = |why: &str| Err(format!("the key {id} {why}"));
        if !key.details.revocation_signatures.is_empty() {
            return fault("is revoked");
        }
        let own = key.details.users.iter().flat_map(|user| {
            let by_key = |signature: &&Signature| {
                signature.verify_certification(primary, Tag::UserId, &user.id).is_ok()
            };
            user.signatures.iter().filter(by_key)
        });
        let direct = key.details.direct_signatures.iter();
        let own = own.chain(direct.filter(|signature| signature.verify_key(primary).is_ok()));
        let Some(newest) = own.max_by_key(|signature| signature.created()) else {
            return fault("has no signature of its own");
        };
        if has_expired(primary, newest) {
            return fault("has expired");
        }
        let Some(index) = subkey else {
            return if newest.key_flags().sign() { Ok(()) } else { fault("may not sign") };
        };
        let subkey = &key.public_subkeys[index];
        if subkey.verify_bindings(primary).is_err() {
            return fault("has another subkey, or has revoked it");
        }
        match subkey.signatures.iter().max_by_key(|signature| signature.created()) {
            Some(binding) if has_expired(&subkey.key, binding) => fault("has an expired subkey"),
            Some(binding) if binding.key_flags().sign() => Ok(()),
            _ => fault("has a subkey that may not sign"),
        }
    }

    fn has_expired(key: &impl KeyDetails, signature: &Signature) -> bool {
        is_over(key.created_at(), signature.key_expiration_time())
    }

    /// A time of 0 has no end.
    fn is_over(start: Timestamp, lasts: Option<Duration>) -> bool {
        let lasts = lasts.map_or(0, |lasts| u64::from(lasts.as_secs()));
        let now = u64::from(Timestamp::now().as_secs());
        lasts != 0 && u64::from(start.as_secs()) + lasts <= now
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! Keys of a test's archive.

use pgp::{
    composed::{CleartextSignedMessage, KeyType, SecretKeyParamsBuilder, SignedSecretKey},
    packet::{KeyFlags, SignatureConfig, SignatureType, Subpacket, SubpacketData},
    ser::Serialize,
    types::{Duration, KeyDetails, Password, Tag, Timestamp},
};
use rand::thread_rng;

pub struct Key {
    secret: SignedSecretKey,
    pub public: Vec<u8>,
}

impl Key {
    pub fn new() -> Key {
        Key::of(Timestamp::now())
    }

    /// A key that was in force for a day of 2017.
    pub fn expired() -> Key {
        let mut key = Key::of(Timestamp::from_secs(1_500_000_000));
        let mut flags = KeyFlags::default();
        flags.set_certify(true);
        flags.set_sign(true);
        let secret = &key.secret.primary_key;
        let mut config =
            SignatureConfig::from_key(thread_rng(), secret, SignatureType::CertPositive).unwrap();
        config.hashed_subpackets = [
            SubpacketData::SignatureCreationTime(Timestamp::from_secs(1_500_000_000)),
            SubpacketData::IssuerFingerprint(secret.fingerprint()),
            SubpacketData::KeyFlags(flags),
            SubpacketData::KeyExpirationTime(Duration::from_secs(24 * 3600)),
        ]
        .map(|data| Subpacket::regular(data).unwrap())
        .into();
        let mut public = key.secret.to_public_key();
        let user = &mut public.details.users[0];
        let primary = &public.primary_key;
        let certified =
            config.sign_certification(secret, primary, &Password::empty(), Tag::UserId, &user.id);
        user.signatures = vec![certified.unwrap()];
        key.public = public.to_bytes().unwrap();
        key
    }

    fn of(created: Timestamp) -> Key {
        let mut builder = SecretKeyParamsBuilder::default();
        builder
            .key_type(KeyType::Ed25519Legacy)
            .created_at(created)
            .can_certify(true)
            .can_sign(true)
            .primary_user_id("An archive <a@example.org>".into());
        let secret = builder.build().unwrap().generate(thread_rng()).unwrap();
        let public = secret.to_public_key().to_bytes().unwrap();
        Key { secret, public }
    }

    pub fn sign(&self, text: &str) -> String {
        let key = &self.secret.primary_key;
        let signed = CleartextSignedMessage::sign(thread_rng(), text, key, &Password::empty());
        signed.unwrap().to_armored_string(Default::default()).unwrap()
    }
}

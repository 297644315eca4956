// SPDX-License-Identifier: MIT OR Apache-2.0
//! Keys of a test's archive.

use pgp::{
    composed::{
        CleartextSignedMessage, KeyType, SecretKeyParamsBuilder, SignedSecretKey,
        SubkeyParamsBuilder,
    },
    packet::{KeyFlags, Signature, SignatureConfig, SignatureType, Subpacket, SubpacketData},
    ser::Serialize,
    types::{Duration, Password, SigningKey, Tag, Timestamp},
};
use rand::thread_rng;

pub struct Key {
    secret: SignedSecretKey,
    pub public: Vec<u8>,
}

impl Key {
    pub fn new() -> Key {
        Key::of(SecretKeyParamsBuilder::default())
    }

    /// A key that was in force for a day of 2017.
    pub fn expired() -> Key {
        let mut key = Key::new();
        let mut flags = KeyFlags::default();
        flags.set_certify(true);
        flags.set_sign(true);
        let secret = &key.secret.primary_key;
        let says = [SubpacketData::KeyFlags(flags), SubpacketData::KeyExpirationTime(a_day())];
        let config = config(secret, SignatureType::CertPositive, year_2017(), says);
        let mut public = key.secret.to_public_key();
        let user = &mut public.details.users[0];
        let primary = &public.primary_key;
        let certified =
            config.sign_certification(secret, primary, &Password::empty(), Tag::UserId, &user.id);
        user.signatures = vec![certified.unwrap()];
        key.public = public.to_bytes().unwrap();
        key
    }

    /// A key that signs by a subkey, as Debian's do.
    pub fn with_subkey(may_sign: bool, has_expired: bool) -> Key {
        let mut subkey = SubkeyParamsBuilder::default();
        subkey.key_type(KeyType::Ed25519Legacy).created_at(year_2017()).can_authenticate(true);
        let mut params = SecretKeyParamsBuilder::default();
        params.subkeys(vec![subkey.build().unwrap()]);
        let mut key = Key::of(params);
        let mut public = key.secret.to_public_key();
        let (primary, subkey) = (&key.secret.primary_key, &key.secret.secret_subkeys[0].key);
        let of_subkey = &mut public.public_subkeys[0];
        let mut flags = KeyFlags::default();
        flags.set_sign(may_sign);
        flags.set_authentication(!may_sign);
        let mut says = vec![SubpacketData::KeyFlags(flags)];
        if has_expired {
            says.push(SubpacketData::KeyExpirationTime(a_day()));
        }
        if may_sign {
            let back = config(subkey, SignatureType::KeyBinding, year_2017(), []);
            let back = back.sign_primary_key_binding(
                subkey,
                &of_subkey.key,
                &Password::empty(),
                &public.primary_key,
            );
            says.push(SubpacketData::EmbeddedSignature(Box::new(back.unwrap())));
        }
        let binding = config(primary, SignatureType::SubkeyBinding, year_2017(), says);
        let binding = binding.sign_subkey_binding(
            primary,
            &public.primary_key,
            &Password::empty(),
            &of_subkey.key,
        );
        of_subkey.signatures = vec![binding.unwrap()];
        key.public = public.to_bytes().unwrap();
        key
    }

    fn of(mut params: SecretKeyParamsBuilder) -> Key {
        params
            .key_type(KeyType::Ed25519Legacy)
            .created_at(year_2017())
            .can_certify(true)
            .can_sign(true)
            .primary_user_id("An archive <a@example.org>".into());
        let secret = params.build().unwrap().generate(thread_rng()).unwrap();
        let public = secret.to_public_key().to_bytes().unwrap();
        Key { secret, public }
    }

    pub fn sign(&self, text: &str) -> String {
        self.sign_at(Timestamp::now(), SignatureType::Text, text)
    }

    /// A signature that was in force for a day of 2017.
    pub fn sign_expired(&self, text: &str) -> String {
        self.sign_at(year_2017(), SignatureType::Text, text)
    }

    /// A signature of the first byte alone.
    pub fn sign_first_byte(&self, text: &str) -> String {
        self.sign_at(Timestamp::now(), SignatureType::Timestamp, text)
    }

    fn sign_at(&self, date: Timestamp, kind: SignatureType, text: &str) -> String {
        match self.secret.secret_subkeys.first() {
            Some(subkey) => signed(&subkey.key, date, kind, text),
            None => signed(&self.secret.primary_key, date, kind, text),
        }
    }
}

fn year_2017() -> Timestamp {
    Timestamp::from_secs(1_500_000_000)
}

fn a_day() -> Duration {
    Duration::from_secs(24 * 3600)
}

fn config(
    key: &impl SigningKey,
    kind: SignatureType,
    date: Timestamp,
    says: impl IntoIterator<Item = SubpacketData>,
) -> SignatureConfig {
    let mut config = SignatureConfig::from_key(thread_rng(), key, kind).unwrap();
    let common = [
        SubpacketData::SignatureCreationTime(date),
        SubpacketData::IssuerFingerprint(key.fingerprint()),
        SubpacketData::IssuerKeyId(key.legacy_key_id()),
    ];
    let all = common.into_iter().chain(says);
    config.hashed_subpackets = all.map(|data| Subpacket::regular(data).unwrap()).collect();
    config
}

/// Each signature ends a day after its date.
fn signed(key: &impl SigningKey, date: Timestamp, kind: SignatureType, text: &str) -> String {
    let config = config(key, kind, date, [SubpacketData::SignatureExpirationTime(a_day())]);
    let signed = CleartextSignedMessage::new_many(text, |text| {
        let mut hasher = config.hash_alg.new_hasher()?;
        config.hash_data_to_sign(&mut hasher, text.as_bytes())?;
        let length = config.hash_signature_data(&mut hasher)?;
        hasher.update(&config.trailer(length)?);
        let hash = hasher.finalize();
        let signature = key.sign(&Password::empty(), config.hash_alg, &hash)?;
        Ok(vec![Signature::from_config(config, [hash[0], hash[1]], signature)?])
    });
    signed.unwrap().to_armored_string(Default::default()).unwrap()
}

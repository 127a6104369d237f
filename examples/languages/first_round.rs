// A first round over HTTP: first_round http://HOST:PORT
use serde_json::{json, Value};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = std::env::args().nth(1).ok_or("first_round http://HOST:PORT")?;
    let post = |path: &str, body: Value| -> Result<Value, Box<dyn std::error::Error>> {
        match ureq::post(&format!("{server}/v1/{path}")).send_json(body) {
            Err(ureq::Error::Status(_, answer)) => Err(answer.into_string()?.into()), // with the place and the value
            answer => Ok(answer?.into_json()?),
        }
    };
    let tensor = json!({"name": "w", "dtype": "float32", "numRows": 50_000});
    let round = post("rounds", json!({"spec": {"tensors": [tensor]}}))?;
    let round = round["name"].as_str().ok_or("no name")?;
    let updates: [(&str, &[u32], &[f32]); 2] = [("a", &[3, 9], &[1.0, 2.0]), ("b", &[9], &[10.0])];
    for (client, keys, values) in updates {
        let packed = |bytes: Vec<[u8; 4]>| base64::encode(bytes.concat()); // little-endian
        let slice = json!({
            "tensor": "w", "keyEncoding": "U32",
            "keys": packed(keys.iter().map(|key| key.to_le_bytes()).collect()),
            "values": packed(values.iter().map(|value| value.to_le_bytes()).collect()),
        });
        let id = json!({"clientId": client, "submissionId": "one"});
        let mut chunk = id.clone();
        chunk["last"] = json!(true);
        chunk["slices"] = json!([slice]);
        post(&format!("{round}/chunks"), chunk)?;
        post(&format!("{round}/submissions"), id)?;
    }
    post(&format!("{round}:close"), json!({}))?;
    ureq::get(&format!("{server}/v1/{round}:wait")).call()?;
    let page: Value = ureq::get(&format!("{server}/v1/{round}/result")).call()?.into_json()?;
    let column = |name: &str| base64::decode(page["slice"][name].as_str().unwrap_or_default());
    for (key, value) in column("keys")?.chunks(4).zip(column("values")?.chunks(4)) {
        println!("{} {}", u32::from_le_bytes(key.try_into()?), f32::from_le_bytes(value.try_into()?));
    }
    Ok(())
}

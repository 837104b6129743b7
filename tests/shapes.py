"""Topics in the shapes of public data sets: their field names and types, with invented values.

    taxi          NYC TLC yellow taxi trip records (nyc.gov/site/tlc, data dictionary)
    openaq        OpenAQ API v2 measurements (docs.openaq.org)
    intel         Intel Berkeley Research lab sensor data (db.csail.mit.edu/labdata)
    shadow        AWS IoT device shadow, accepted updates; the record's key is the thing's name
    home          Home Assistant, state_changed events
    zigbee        Zigbee2MQTT with last_seen and device information
    lorawan       The Things Stack v3, uplink messages
    opensky       OpenSky Network, state vectors as objects
    smartcitizen  SmartCitizen API v0, devices with their last readings

Each has `expected`: device id, event time, unit, and measures that must be among the proposed ones; None for what the records do
not have in a form that settings can name, where the proposal must not claim to be sure.
"""

import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

Records = Iterator[tuple[str | None, Any, int]]
"""Key, record, the broker's time in ms."""
BEGIN_MS = 1_790_000_000_000
COUNT = 600


@dataclass(frozen=True, slots=True)
class Shape:
    records: Callable[[random.Random, int, int], Records]
    """Takes the broker's time of the last record, and the number of records."""
    device: str | None
    event_time: str | None
    unit: str | None
    measures: frozenset[str] | None


def _times(count: int, until_ms: int, every_ms: int) -> Iterator[tuple[int, int]]:
    yield from ((n, until_ms - (count - 1 - n) * every_ms) for n in range(count))


def _iso(ms: float, zone: str = "Z", separator: str = "T") -> str:
    text = datetime.fromtimestamp(ms / 1000, UTC).isoformat(separator, "milliseconds")
    return text.replace("+00:00", zone)


def taxi(chance: random.Random, until_ms: int, count: int) -> Records:
    for _, at_ms in _times(count, until_ms, 900):
        length_ms = chance.randint(180_000, 3_600_000)
        fare = round(3 + length_ms / 90_000, 2)
        yield (
            None,
            {
                "VendorID": chance.choice((1, 2, 6)),
                "tpep_pickup_datetime": _iso(at_ms - length_ms, "", " ")[:19],
                "tpep_dropoff_datetime": _iso(at_ms, "", " ")[:19],
                "passenger_count": chance.choice((1.0, 1.0, 2.0, None)),
                "trip_distance": round(length_ms / 250_000, 2),
                "RatecodeID": chance.choice((1.0, 2.0, None)),
                "store_and_fwd_flag": chance.choice("NY"),
                "PULocationID": chance.randint(1, 263),
                "DOLocationID": chance.randint(1, 263),
                "payment_type": chance.randint(1, 4),
                "fare_amount": fare,
                "extra": 1.0,
                "mta_tax": 0.5,
                "tip_amount": round(fare * 0.2, 2),
                "tolls_amount": 0.0,
                "improvement_surcharge": 1.0,
                "total_amount": round(fare * 1.2 + 2.5, 2),
                "congestion_surcharge": chance.choice((2.5, None)),
                "Airport_fee": chance.choice((0.0, 1.75, None)),
            },
            at_ms,
        )


def openaq(chance: random.Random, until_ms: int, count: int) -> Records:
    parameters = {"pm25": "µg/m³", "pm10": "µg/m³", "o3": "ppm", "no2": "ppm", "co": "ppm"}
    for n, at_ms in _times(count, until_ms, 700):
        number = chance.randint(1, 12)
        parameter = chance.choice(list(parameters))
        measured_ms = at_ms - chance.randint(5_000, 40_000)
        yield (
            None,
            {
                "locationId": 8_000 + number,
                "location": f"Station {number}",
                "parameter": parameter,
                "value": -999.0 if n % 97 == 0 else round(chance.uniform(0, 80), 3),
                "date": {"utc": _iso(measured_ms, "+00:00"), "local": _iso(measured_ms - 18_000_000, "-05:00")},
                "unit": parameters[parameter],
                "coordinates": {"latitude": 40 + number / 10, "longitude": -73 - number / 10},
                "country": "US",
                "city": None,
                "isMobile": False,
                "isAnalysis": None,
                "entity": "Governmental Organization",
                "sensorType": "reference grade",
            },
            at_ms,
        )


def intel(chance: random.Random, until_ms: int, count: int) -> Records:
    for n, at_ms in _times(count, until_ms, 560):
        text = _iso(at_ms - chance.randint(0, 900), "", " ")
        yield (
            None,
            {
                "date": text[:10],
                "time": text[11:],
                "epoch": 1 + n // 54,
                "moteid": str(1 + n % 54),
                "temperature": round(chance.gauss(21, 3), 4),
                "humidity": round(chance.gauss(40, 5), 4) if n % 50 else None,
                "light": round(chance.uniform(0, 400), 2),
                "voltage": round(chance.gauss(2.7, 0.1), 5),
            },
            at_ms,
        )


def shadow(chance: random.Random, until_ms: int, count: int) -> Records:
    for n, at_ms in _times(count, until_ms, 1_000):
        seconds = at_ms // 1000
        yield (
            f"thing-{n % 20:02d}",
            {
                "state": {
                    "reported": {
                        "temperature": chance.gauss(20, 2),
                        "connected": True,
                        "rssi": chance.randint(-90, -40),
                    }
                },
                "metadata": {
                    "reported": {
                        "temperature": {"timestamp": seconds},
                        "connected": {"timestamp": seconds},
                        "rssi": {"timestamp": seconds},
                    }
                },
                "version": 100 + n,
                "timestamp": seconds,
                "clientToken": f"token-{n:06x}",
            },
            at_ms + 300,
        )


def home(chance: random.Random, until_ms: int, count: int) -> Records:
    for n, at_ms in _times(count, until_ms, 1_000):
        changed = _iso(at_ms - 40, "+00:00")
        state = {
            "entity_id": f"sensor.room_{n % 15}_temperature",
            "state": "unavailable" if n % 90 == 0 else f"{chance.gauss(20, 2):.1f}",
            "attributes": {
                "unit_of_measurement": "°C",
                "device_class": "temperature",
                "friendly_name": f"Room {n % 15}",
            },
            "last_changed": changed,
            "last_updated": changed,
            "context": {"id": f"01J{n:023d}", "parent_id": None, "user_id": None},
        }
        yield None, state, at_ms


def zigbee(chance: random.Random, until_ms: int, count: int) -> Records:
    for n, at_ms in _times(count, until_ms, 2_000):
        number = n % 25
        yield (
            f"zigbee2mqtt/room_{number}",
            {
                "battery": chance.choice((100, 91, None)),
                "humidity": round(chance.uniform(30, 60), 2),
                "linkquality": chance.randint(20, 255),
                "temperature": round(chance.gauss(21, 2), 2),
                "voltage": chance.randint(2_800, 3_100),
                "last_seen": at_ms - 120,
                "update_available": False,
                "device": {
                    "applicationVersion": 5,
                    "friendlyName": f"room_{number}",
                    "ieeeAddr": f"0x00158d00{number:08x}",
                    "manufacturerID": 4151,
                    "model": "WSDCGQ11LM",
                    "networkAddress": 1_000 + number,
                    "type": "EndDevice",
                },
            },
            at_ms,
        )


def lorawan(chance: random.Random, until_ms: int, count: int) -> Records:
    for n, at_ms in _times(count, until_ms, 3_000):
        number = n % 30
        gateway = {
            "gateway_ids": {"gateway_id": f"gtw{n % 3}", "eui": f"B827EBFFFE{n % 3:06X}"},
            "rssi": -80 - n % 20,
            "snr": 7.5,
        }
        yield (
            None,
            {
                "end_device_ids": {
                    "device_id": f"soil-{number}",
                    "application_ids": {"application_id": "farm"},
                    "dev_eui": f"0004A30B{number:08X}",
                    "join_eui": "800000000000000C",
                    "dev_addr": f"00BCB9{number:02X}",
                },
                "correlation_ids": [f"as:up:01H{n:023d}"],
                "received_at": _iso(at_ms)[:-1] + "456789Z",
                "uplink_message": {
                    "session_key_id": "AXA50tHUeNFYtAeIC9lr8A==",
                    "f_port": 2,
                    "f_cnt": n // 30,
                    "frm_payload": "BxcCsA==",
                    "decoded_payload": {"soil_moisture": round(chance.uniform(5, 45), 1), "battery_v": 3.6},
                    "rx_metadata": [{**gateway, "time": _iso(at_ms - 210), "timestamp": (n * 3_000_000) % (1 << 32)}],
                    "settings": {
                        "data_rate": {"lora": {"bandwidth": 125_000, "spreading_factor": 7}},
                        "frequency": "868300000",
                        "timestamp": (2_040_934_975 + n * 3_000_000) % (1 << 32),
                        "time": _iso(at_ms - 210),
                    },
                    "received_at": _iso(at_ms - 205),
                    "consumed_airtime": "0.056576s",
                },
            },
            at_ms + 30,
        )


def opensky(chance: random.Random, until_ms: int, count: int) -> Records:
    for n, at_ms in _times(count, until_ms, 250):
        number = n % 40
        contact = at_ms // 1000 - chance.randint(0, 3)
        yield (
            None,
            {
                "icao24": f"{0x3C6444 + number * 17:06x}",
                "callsign": f"DLH{number:03d}  ",
                "origin_country": "Germany",
                "time_position": None if n % 11 == 0 else contact - chance.randint(0, 12),
                "last_contact": contact,
                "longitude": round(chance.uniform(6, 14), 4),
                "latitude": round(chance.uniform(47, 54), 4),
                "baro_altitude": round(chance.uniform(500, 12_000), 2),
                "on_ground": False,
                "velocity": round(chance.uniform(60, 260), 2),
                "true_track": round(chance.uniform(0, 359), 2),
                "vertical_rate": round(chance.uniform(-10, 10), 2),
                "sensors": None,
                "geo_altitude": round(chance.uniform(500, 12_000), 2),
                "squawk": f"{chance.randint(1000, 7777)}",
                "spi": False,
                "position_source": 0,
            },
            at_ms,
        )


def smartcitizen(chance: random.Random, until_ms: int, count: int) -> Records:
    for n, at_ms in _times(count, until_ms, 2_000):
        number = n % 10
        recorded = _iso(at_ms - 700)[:19] + "Z"
        sensors = [
            {"id": i, "name": name, "unit": "u", "value": chance.uniform(0, 90)}
            for i, name in ((55, "temp"), (56, "rh"))
        ]
        yield (
            None,
            {
                "id": 1_600 + number,
                "uuid": f"bb3c5a40-0000-4000-8000-{number:012d}",
                "name": f"Kit {number}",
                "state": "has_published",
                "last_reading_at": recorded,
                "added_at": "2016-05-17T12:30:01Z",
                "data": {"recorded_at": recorded, "location": {"latitude": 41.4, "longitude": 2.2}, "sensors": sensors},
            },
            at_ms,
        )


SHAPES: Mapping[str, Shape] = {
    "taxi": Shape(taxi, None, "tpep_dropoff_datetime", "iso", frozenset({"trip_distance", "total_amount"})),
    "openaq": Shape(openaq, "locationId", "date.utc", "iso", None),
    "intel": Shape(intel, "moteid", None, None, frozenset({"temperature", "humidity", "light", "voltage"})),
    "shadow": Shape(shadow, "$key", "timestamp", "s", frozenset({"state.reported.temperature", "state.reported.rssi"})),
    "home": Shape(home, "entity_id", "last_updated", "iso", None),
    "zigbee": Shape(zigbee, "device.ieeeAddr", "last_seen", "ms", frozenset({"temperature", "humidity", "battery"})),
    "lorawan": Shape(
        lorawan,
        "end_device_ids.device_id",
        "uplink_message.settings.time",
        "iso",
        frozenset({"uplink_message.decoded_payload.soil_moisture", "uplink_message.decoded_payload.battery_v"}),
    ),
    "opensky": Shape(opensky, "icao24", "last_contact", "s", frozenset({"velocity", "geo_altitude", "vertical_rate"})),
    "smartcitizen": Shape(smartcitizen, "id", "data.recorded_at", "iso", None),
}


def records(name: str, until_ms: int = BEGIN_MS, count: int = COUNT) -> list[tuple[bytes | None, bytes, int]]:
    """Return a topic of this shape: key, value and the broker's time of each record."""
    made = SHAPES[name].records(random.Random(name), until_ms, count)
    return [
        (key.encode() if key else None, json.dumps(record, ensure_ascii=False).encode(), ms) for key, record, ms in made
    ]

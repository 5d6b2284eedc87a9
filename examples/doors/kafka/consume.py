"""Write the messages of a Kafka topic as parts of a log, for `python -m app online`.

python consume.py SERVERS TOPIC PARTS ROWS SECONDS

A message is a line of the log. The messages of each partition become a part after SECONDS, or when a partition has ROWS
messages. Each message is in exactly one part, also after a kill, because the offsets in the names of the parts tell
where to go on. Run one process.
"""

import os
import re
import sys
import time
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

NAME = r"(\d+)-partition-(\d+)-offsets-\d+-(\d+)\.txt"  # End it in .jsonl if the messages are JSON objects.
servers, topic, parts, rows, seconds = *sys.argv[1:3], Path(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5])
# If Kafka has deleted messages before they were read, end with an error. Do not skip them.
settings = {"group.id": "parts", "enable.auto.commit": False, "auto.offset.reset": "error"}
consumer = Consumer({"bootstrap.servers": servers, **settings})
partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
if not partitions:
    sys.exit(f"error: Kafka at {servers} has no topic {topic}")
names = [re.fullmatch(NAME, path.name) for path in parts.iterdir()]
written = [list(map(int, name.groups())) for name in names if name]
stamp = max((part[0] for part in written), default=0)  # Names must rise, even if the clock is set back.
places = consumer.committed([TopicPartition(topic, partition) for partition in partitions], timeout=10)
for place in places:  # After a kill between renaming and commit, the newest part is ahead of the committed offset.
    place.offset = max(place.offset, OFFSET_BEGINNING, *(last + 1 for _, n, last in written if n == place.partition))
consumer.assign(places)

while True:
    end, waiting = time.monotonic() + seconds, {}  # The messages of the next parts, by partition.
    while time.monotonic() < end and all(len(messages) < rows for messages in waiting.values()):
        for message in consumer.consume(min(rows, 1000), timeout=1):
            if message.error():
                sys.exit(f"error: {topic}, partition {message.partition()}: {message.error()}")
            waiting.setdefault(message.partition(), []).append(message)
    for partition, messages in waiting.items():
        stamp, last = max(stamp + 1, time.time_ns() // 1_000_000), messages[-1].offset()
        part = parts / f"{stamp}-partition-{partition}-offsets-{messages[0].offset()}-{last}.txt"
        hidden = part.with_name(".next-part")
        hidden.write_bytes(b"".join(each.value().replace(b"\n", b" ") + b"\n" for each in messages if each.value()))
        os.sync()
        hidden.rename(part)
        os.sync()
        consumer.commit(offsets=[TopicPartition(topic, partition, last + 1)], asynchronous=False)

"""Script: an S3 server on this machine (moto's) with ten buckets. It prints its port, and ends when its input closes.

It is a separate process, because deltalake holds Python's lock while it waits for a response.
"""

import os
import sys

import boto3
from moto.server import ThreadedMotoServer

server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
_, port = server.get_host_and_port()
os.environ.update(AWS_ACCESS_KEY_ID="somebody", AWS_SECRET_ACCESS_KEY="secret", AWS_DEFAULT_REGION="us-east-1")
client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}")
for number in range(10):
    client.create_bucket(Bucket=f"study-{number}")
print(port, flush=True)
sys.stdin.read()

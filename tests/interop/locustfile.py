"""What locust plays against pd-lb: chats whole and streamed, and batches of completions."""

from locust import HttpUser, constant, task

CHAT = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8}


class Client(HttpUser):
    """Asks again at once."""

    wait_time = constant(0)

    @task(2)
    def chat(self):
        """Fail on an answer without a choice."""
        with self.client.post(
            "/v1/chat/completions", json={"model": "default", **CHAT}, catch_response=True
        ) as answer:
            if answer.status_code != 200 or not answer.json()["choices"]:
                answer.failure(answer.text)

    @task(2)
    def stream(self):
        """Fail on a stream without its end."""
        body = {"model": "default", "stream": True, **CHAT}
        with self.client.post(
            "/v1/chat/completions", json=body, catch_response=True, name="stream"
        ) as answer:
            if not answer.text.rstrip().endswith("data: [DONE]"):
                answer.failure(answer.text)

    @task(1)
    def completions(self):
        """Fail on a batch that is not whole."""
        body = {"model": "default", "prompt": ["a", "b", "c"], "max_tokens": 4}
        with self.client.post("/v1/completions", json=body, catch_response=True) as answer:
            if answer.status_code != 200 or len(answer.json()["choices"]) != 3:
                answer.failure(answer.text)

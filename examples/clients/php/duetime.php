<?php
// A client of Duetime's HTTP API with nothing but PHP itself. Run the story at the end:
//
//     php duetime.php http://127.0.0.1:7777

declare(strict_types=1);

/** What the server refused: $errorCode is for programs, the message for people. */
final class DuetimeError extends RuntimeException
{
    public function __construct(public readonly string $errorCode, public readonly int $status, string $detail)
    {
        parent::__construct($detail);
    }
}

final class Duetime
{
    public function __construct(
        private readonly string $url,
        private readonly string $namespace = 'default',
        private readonly string $token = '',
    ) {
    }

    public function queue(string $name): DuetimeQueue
    {
        return new DuetimeQueue($this, '/v1/queues/' . rawurlencode($this->namespace) . '/' . rawurlencode($name));
    }

    /** Sends a request; repeats it up to five times if $repeat says that this is safe. */
    public function send(string $method, string $path, ?array $message = null, bool $repeat = false): array
    {
        for ($attempt = 1; ; $attempt++) {
            [$status, $text] = $this->once($method, $path, $message);
            $answer = json_decode($text, true) ?? [];
            if ($status >= 200 && $status < 300) {
                return $answer;
            }
            if (!$repeat || $attempt === 5 || !in_array($status, [0, 429, 502, 503, 504], true)) {
                $code = $answer['code'] ?? 'no_answer';
                throw new DuetimeError($code, $status, $answer['detail'] ?? "no answer from {$this->url}");
            }
            usleep(100_000 * 2 ** $attempt);
        }
    }

    /** @return array{int, string} the status (0: no answer) and the body */
    private function once(string $method, string $path, ?array $message): array
    {
        $headers = ['content-type: application/json', 'connection: close'];
        if ($this->token !== '') {
            $headers[] = "authorization: Bearer {$this->token}";
        }
        $options = ['method' => $method, 'header' => $headers, 'ignore_errors' => true, 'timeout' => 3700];
        if ($message !== null) {
            $options['content'] = json_encode($message, JSON_THROW_ON_ERROR | JSON_UNESCAPED_UNICODE);
        }
        $text = @file_get_contents($this->url . $path, false, stream_context_create(['http' => $options]));
        return $text === false ? [0, ''] : [(int) explode(' ', $http_response_header[0])[1], $text];
    }
}

final class DuetimeQueue
{
    public function __construct(private readonly Duetime $client, private readonly string $path)
    {
    }

    /** Adds a job that is due after $delay ("10m", or seconds). Repeating an id keeps the first job. */
    public function later(string|float $delay, array|string $body, ?string $id = null, array $options = []): array
    {
        $id ??= bin2hex(random_bytes(16));
        $message = ['id' => $id, 'delay' => $delay, 'body' => $body, ...$options];
        return $this->client->send('POST', "{$this->path}/jobs", $message, true)['moved'];
    }

    /** Leases a job; waits for one to fall due. Null if none came in time. */
    public function reserve(string $wait = '30s', string $ttr = '60s'): ?array
    {
        $answer = $this->client->send('POST', "{$this->path}/reserve", ['wait' => $wait, 'ttr' => $ttr]);
        return $answer['deliveries'][0] ?? null;
    }

    public function ack(array $lease): void
    {
        $this->client->send('POST', "{$this->path}/ack", ['lease' => $lease], true);
    }

    /** Gives a job back, to be delivered again after $delay. */
    public function release(array $lease, string|float $delay = 0.0, string $error = ''): void
    {
        $message = ['lease' => $lease, 'delay' => $delay, 'error' => $error];
        $this->client->send('POST', "{$this->path}/release", $message);
    }

    /** Renews the lease; returns when it ends, in epoch milliseconds. */
    public function extend(array $lease, string $ttr = '60s'): int
    {
        return $this->client->send('POST', "{$this->path}/extend", ['lease' => $lease, 'ttr' => $ttr])['lease_until'];
    }

    public function cancel(string $id): array
    {
        return $this->client->send('DELETE', "{$this->path}/jobs/" . rawurlencode($id))['moved'];
    }

    public function counts(): array
    {
        return $this->client->send('GET', $this->path)['counts'];
    }
}

function story(string $url): void
{
    $mail = (new Duetime($url, token: getenv('DUETIME_TOKEN') ?: ''))->queue('php');
    echo 'push ', $mail->later('100ms', ['to' => 'ann'], 'welcome-ann')['event'], "\n";
    echo 'push again ', $mail->later('100ms', ['to' => 'ann'], 'welcome-ann')['event'], "\n";
    $mail->later('1h', ['to' => 'bob'], 'welcome-bob');
    echo 'cancel ', $mail->cancel('welcome-bob')['event'], "\n";
    try {
        $mail->cancel('welcome-bob');
    } catch (DuetimeError $error) {
        echo 'cancel again ', $error->errorCode, "\n";
    }
    for ($job = $mail->reserve(); $job !== null; $job = $mail->reserve('200ms')) {
        ['lease' => $lease, 'body' => $body, 'due_at' => $dueAt] = $job;
        $when = microtime(true) * 1000 < $dueAt ? 'early' : 'due';
        echo "work {$lease['id']} attempt {$lease['attempt']} ", json_encode($body), " $when\n";
        if ($lease['attempt'] === 1) {
            $mail->release($lease, '50ms', 'the mail server is busy');
        } else {
            $mail->ack($lease);
        }
    }
    $counts = $mail->counts();
    echo 'left ', $counts['delayed'] + $counts['ready'] + $counts['leased'] + $counts['dead'], "\n";
}

if (isset($argv[1])) {
    story($argv[1]);
}

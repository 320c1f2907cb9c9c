<?php
/*
 * Laravel's database queue, as Debian packages it: one JSON document per call.
 *
 * php laravel_queue.php install|rates DRIVER HOST PORT DATABASE USER PASSWORD JOBS SECONDS
 *
 * A worker of Laravel pops one job in a transaction, and deletes it in another. Delayed jobs that "install" puts behind
 * are due in a day. Each rate is measured for SECONDS at most.
 */

error_reporting(E_ALL & ~E_DEPRECATED & ~E_USER_DEPRECATED);
require_once 'Illuminate/Queue/autoload.php';
require_once 'Illuminate/Database/autoload.php';

use Illuminate\Container\Container;
use Illuminate\Database\Capsule\Manager as Database;
use Illuminate\Queue\DatabaseQueue;

const STEP = 500;
const DAY_S = 86400;

[, $task, $driver, $host, $port, $name, $user, $password, $jobs, $seconds] = $argv;
[$jobs, $seconds] = [(int) $jobs, (float) $seconds];
$body = str_repeat('x', 100);

$database = new Database();
$database->addConnection([
    'driver' => $driver,
    'host' => $host,
    'port' => $port,
    'database' => $name,
    'username' => $user,
    'password' => $password,
    'charset' => $driver === 'mysql' ? 'utf8mb4' : 'utf8',
]);
$connection = $database->getConnection();
$queue = new DatabaseQueue($connection, 'jobs', 'default', 90);
$queue->setContainer(new Container());
$queue->setConnectionName('default');

function install($connection, string $driver, string $body, int $jobs): void
{
    // The columns and the index of Laravel's own migration.
    $connection->getSchemaBuilder()->create('jobs', function ($table) {
        $table->bigIncrements('id');
        $table->string('queue')->index();
        $table->longText('payload');
        $table->unsignedTinyInteger('attempts');
        $table->unsignedInteger('reserved_at')->nullable();
        $table->unsignedInteger('available_at');
        $table->unsignedInteger('created_at');
    });
    if ($jobs > 0) {
        $rows = $driver === 'pgsql' ? "generate_series(1, $jobs)" : "seq_1_to_$jobs";
        $connection->statement(
            'INSERT INTO jobs (queue, payload, attempts, reserved_at, available_at, created_at) '
            . "SELECT 'default', ?, 0, NULL, ?, ? FROM $rows",
            [$body, time() + DAY_S, time()]
        );
    }
}

function rates($queue, string $body, int $jobs, float $seconds): array
{
    $started = microtime(true);
    for ($at = 0; $at < $jobs && microtime(true) - $started < $seconds; $at++) {
        $queue->push('Handler', $body);
    }
    $pushed = $at / (microtime(true) - $started);

    $started = microtime(true);
    $queue->bulk(array_fill(0, STEP, 'Handler'), $body);
    $batched = STEP / (microtime(true) - $started);

    $started = microtime(true);
    $taken = 0;
    while (microtime(true) - $started < $seconds && ($job = $queue->pop()) !== null) {
        $job->delete();
        $taken++;
    }
    $finished = $taken / (microtime(true) - $started);
    return ['one by one' => $pushed, 'batches of 500' => $batched, 'take + finish' => $finished];
}

if ($task === 'install') {
    install($connection, $driver, $body, $jobs);
    echo "{}\n";
} else {
    echo json_encode(rates($queue, $body, $jobs, $seconds)), "\n";
}

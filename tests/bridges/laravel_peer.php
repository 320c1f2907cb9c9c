<?php
// A Laravel program of a few lines around Illuminate\Queue, for the tests of the bridges.
//
//   php laravel_peer.php CONFIG push QUEUE COUNT DELAY     push COUNT jobs `Job@fire` with data {"n": i, "due": second},
//                                                        each after up to DELAY seconds
//   php laravel_peer.php CONFIG work QUEUE                 work until TERM; each job appends "php N" to the log file
//   php laravel_peer.php CONFIG sizes QUEUE
//
// CONFIG is JSON: {"connection": {...}, "redis": {...}, "database": {...}, "log": "file"}.
error_reporting(E_ALL & ~E_DEPRECATED & ~E_USER_DEPRECATED);
foreach (['Container', 'Support', 'Events', 'Queue', 'Redis', 'Database', 'Bus', 'Pipeline'] as $part) {
    $file = "/usr/share/php/Illuminate/$part/autoload.php";
    if (file_exists($file)) require_once $file;
}

use Illuminate\Container\Container;
use Illuminate\Contracts\Debug\ExceptionHandler;
use Illuminate\Queue\Capsule\Manager;
use Illuminate\Queue\Worker;
use Illuminate\Queue\WorkerOptions;

$config = json_decode($argv[1], true);

class Job {
    public static $log;
    public function fire($job, $data) {
        file_put_contents(self::$log, "php {$data['n']} {$job->attempts()}\n", FILE_APPEND | LOCK_EX);
        if (!empty($data['sleep'])) sleep($data['sleep']);
        $job->delete();
    }
}
Job::$log = $config['log'];

class Errors implements ExceptionHandler {
    public function report(\Throwable $e) { fwrite(STDERR, $e . "\n"); }
    public function shouldReport(\Throwable $e) { return true; }
    public function render($request, \Throwable $e) {}
    public function renderForConsole($output, \Throwable $e) {}
}

$app = new class extends Container {
    public function isDownForMaintenance() { return false; }
};
Container::setInstance($app);
$events = new Illuminate\Events\Dispatcher($app);
$app->instance('events', $events);
$app->instance(Illuminate\Contracts\Events\Dispatcher::class, $events);
$app->instance(Illuminate\Contracts\Container\Container::class, $app);
$manager = new Manager($app);
if (isset($config['redis'])) {
    $redis = new Illuminate\Redis\RedisManager($app, 'phpredis', $config['redis']);
    $app->instance('redis', $redis);
    $manager->getQueueManager()->addConnector('redis', fn () => new Illuminate\Queue\Connectors\RedisConnector($redis));
}
if (isset($config['database'])) {
    $capsule = new Illuminate\Database\Capsule\Manager($app);
    $capsule->addConnection($config['database']);
    $database = $capsule->getDatabaseManager();
    $app->instance('db', $database);
    $manager->getQueueManager()->addConnector('database', fn () => new Illuminate\Queue\Connectors\DatabaseConnector($database));
}
$manager->addConnection($config['connection']);
$queue = $manager->getConnection();
$name = $argv[3];
switch ($argv[2]) {
    case 'push':
        for ($i = 0; $i < (int) $argv[4]; $i++) {
            $delay = mt_rand(0, (int) $argv[5]);
            $data = ['n' => $i, 'due' => time() + $delay];
            if ($argv[5] > 0) $queue->later($delay, 'Job@fire', $data, $name);
            else $queue->push('Job@fire', $data, $name);
        }
        break;
    case 'sizes':
        echo $queue->size($name), "\n";
        break;
    case 'work':
        $worker = new Worker($manager->getQueueManager(), $events, new Errors, fn () => false);
        fwrite(STDOUT, "working\n");
        $options = new WorkerOptions('default', 0, 1024, 60, 0.05, 5);
        exit($worker->daemon('default', $name, $options));
}

package rlock.interop;

import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;

import org.redisson.Redisson;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**
 * One Redisson client in a process of its own, which does what it reads on its standard input.
 *
 * <p>A request is a line {@code id, thread, verb, arguments}, a reply a line {@code id, ok | no | failed,
 * values}; the fields are separated by tabs. A lock of Redisson belongs to a thread, so the request names
 * the one that executes it. Each thread executes its requests in their order, and different threads
 * theirs at the same time. The process ends with its input.
 */
public final class Driver {
    private final RedissonClient redisson;
    private final Commands commands;
    private final PrintStream out;
    private final Map<String, Worker> workers = new HashMap<>();

    private Driver(RedissonClient redisson, PrintStream out) {
        this.redisson = redisson;
        this.commands = new Commands(redisson);
        this.out = out;
    }

    /** Arguments: cluster, sentinel or the kind of a single server, the watchdog time-out in ms, the addresses (of the sentinels). */
    public static void main(String[] args) throws IOException {
        PrintStream out = new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);
        System.setOut(System.err); // whatever else is printed is no reply
        Driver driver = new Driver(Redisson.create(config(args)), out);
        driver.reply("0", "ok", Redisson.class.getPackage().getImplementationVersion());
        var in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = in.readLine()) != null;) {
            driver.take(line.split("\t", -1));
        }
        Runtime.getRuntime().halt(0);
    }

    private static Config config(String[] args) {
        String[] addresses = Arrays.stream(args).skip(2).map(a -> "redis://" + a).toArray(String[]::new);
        // Small pools: a driver has few threads, and shares its machine with many processes.
        Config config = new Config().setThreads(4).setNettyThreads(4).setLockWatchdogTimeout(Long.parseLong(args[1]));
        switch (args[0]) {
            case "cluster" -> config.useClusterServers().addNodeAddress(addresses)
                    .setMasterConnectionMinimumIdleSize(2).setSlaveConnectionMinimumIdleSize(2);
            case "sentinel" -> config.useSentinelServers().setMasterName("mymaster").addSentinelAddress(addresses)
                    .setMasterConnectionMinimumIdleSize(2).setSlaveConnectionMinimumIdleSize(2);
            default -> config.useSingleServer().setAddress(addresses[0]).setConnectionMinimumIdleSize(2)
                    .setTimeout(Integer.getInteger("rlock.timeout", 3000)); // ms; 3000 is the default of Redisson
        }
        return config;
    }

    private void take(String[] request) {
        String id = request[0];
        Worker worker = workers.computeIfAbsent(request[1], Worker::new);
        String verb = request[2];
        String[] args = Arrays.copyOfRange(request, 3, request.length);
        switch (verb) {
            // These are not for the thread to execute, which may be waiting for a lock.
            case "crash" -> Runtime.getRuntime().halt(1);
            case "asleep" -> reply(id, worker.asleep() ? "ok" : "no");
            case "interrupt" -> {
                worker.interrupt();
                reply(id, "ok");
            }
            case "exit" -> {
                redisson.shutdown();
                reply(id, "ok");
            }
            default -> worker.requests.add(() -> execute(id, verb, args));
        }
    }

    private void execute(String id, String verb, String[] args) {
        try {
            String[] values = commands.execute(verb, args);
            reply(id, values == null ? "no" : "ok", values == null ? new String[0] : values);
        } catch (Exception e) {
            reply(id, "failed", e.toString());
        }
    }

    private void reply(String id, String outcome, String... values) {
        String line = id + "\t" + outcome + (values.length == 0 ? "" : "\t" + String.join("\t", values));
        synchronized (out) {
            out.println(line.replaceAll("[\r\n]+", " "));
        }
    }

    /** A thread that executes its requests one after the other. */
    private static final class Worker extends Thread {
        final BlockingQueue<Runnable> requests = new LinkedBlockingQueue<>();

        Worker(String name) {
            super(name);
            start();
        }

        /** Tells whether it waits: Redisson's waiters sleep at a semaphore, those of a latch at one of its own. */
        boolean asleep() {
            return Arrays.stream(getStackTrace()).map(StackTraceElement::getClassName)
                    .anyMatch(c -> c.equals("java.util.concurrent.Semaphore") || c.equals("org.redisson.misc.ReclosableLatch"));
        }

        @Override
        public void run() {
            while (true) {
                try {
                    requests.take().run();
                } catch (InterruptedException e) {
                    // The request that was meant is over.
                }
            }
        }
    }
}

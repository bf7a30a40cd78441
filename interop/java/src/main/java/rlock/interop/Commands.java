package rlock.interop;

import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.TimeUnit;

import org.redisson.api.RAtomicLong;
import org.redisson.api.RBucket;
import org.redisson.api.RCountDownLatch;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RSemaphore;
import org.redisson.api.RTopic;
import org.redisson.api.RedissonClient;
import org.redisson.client.RedisTimeoutException;
import org.redisson.client.codec.StringCodec;

/**
 * What can be asked of a driver. Arguments and values are text; times of day are microseconds since
 * the epoch, so that processes on one machine can compare them, and durations milliseconds.
 */
final class Commands {
    /** A command: null means "no", the lock is not to be had. */
    private interface Command {
        String[] execute(String[] args) throws Exception;
    }

    private final RedissonClient redisson;
    private final Map<String, Command> commands;
    private final Map<String, RLock> locks = new ConcurrentHashMap<>();
    private final Map<String, Queue<String>> heard = new ConcurrentHashMap<>();

    Commands(RedissonClient redisson) {
        this.redisson = redisson;
        Permits permits = new Permits(redisson);
        commands = Map.ofEntries(
                Map.entry("permits", permits::set),
                Map.entry("add", permits::add),
                Map.entry("available", permits::available),
                Map.entry("take", permits::take),
                Map.entry("give", permits::give),
                Map.entry("stints", permits::stints),
                Map.entry("lock", this::lock),
                Map.entry("try", this::tryLock),
                Map.entry("unlock", this::unlock),
                Map.entry("force", this::force),
                Map.entry("state", this::state),
                Map.entry("token", this::token),
                Map.entry("lockAndGetToken", this::lockAndGetToken),
                Map.entry("name", this::name),
                Map.entry("subscribe", this::subscribe),
                Map.entry("heard", this::heard),
                Map.entry("sections", this::sections),
                Map.entry("race", this::race),
                Map.entry("semaphore", this::semaphore),
                Map.entry("latch", this::latch));
    }

    String[] execute(String verb, String[] args) throws Exception {
        Command command = commands.get(verb);
        if (command == null) {
            throw new IllegalArgumentException("no command " + verb);
        }
        return command.execute(args);
    }

    /** The lock of a type and name, the same object each time, as in a program that keeps it in a field. */
    private RLock find(String type, String name) {
        return locks.computeIfAbsent(type + "\t" + name, key -> open(type, name));
    }

    /** Redisson 3 has no such lock, and the driver runs with it too. */
    private RLock nonReentrant(String name) {
        try {
            return (RLock) RedissonClient.class.getMethod("getNonReentrantLock", String.class).invoke(redisson, name);
        } catch (ReflectiveOperationException e) {
            throw new IllegalArgumentException("no type once", e);
        }
    }

    private RLock open(String type, String name) {
        return switch (type) {
            case "lock" -> redisson.getLock(name);
            case "fair" -> redisson.getFairLock(name);
            case "spin" -> redisson.getSpinLock(name);
            case "fenced" -> redisson.getFencedLock(name);
            case "once" -> nonReentrant(name);
            case "read" -> redisson.getReadWriteLock(name).readLock();
            case "write" -> redisson.getReadWriteLock(name).writeLock();
            // Members as type:name, in the order in which they are taken.
            case "multi" -> redisson.getMultiLock(Arrays.stream(name.split("\\|")).map(member -> {
                String[] parts = member.split(":", 2);
                return open(parts[0], parts[1]);
            }).toArray(RLock[]::new));
            case "red" -> redisson.getRedLock(redisson.getLock(name));
            case "group" -> redisson.getMultiLock(name, List.of("a", "b"));
            case "entry" -> redisson.getMap(name, StringCodec.INSTANCE).getLock("key");
            default -> throw new IllegalArgumentException("no type " + type);
        };
    }

    /** lock TYPE NAME LEASE (0: renewed) gives the time at which it was taken, and the token or 0. */
    private String[] lock(String[] args) throws InterruptedException {
        return taken(acquire(find(args[0], args[1]), -1, Long.parseLong(args[2])));
    }

    /** try TYPE NAME WAIT LEASE. */
    private String[] tryLock(String[] args) throws InterruptedException {
        Long token = acquire(find(args[0], args[1]), Long.parseLong(args[2]), Long.parseLong(args[3]));
        return token == null ? null : taken(token);
    }

    private static String[] taken(Long token) {
        return new String[] {now(), token.toString()};
    }

    /** Takes a lock, for a wait below 0 however long it takes; null if it is not to be had. */
    private static Long acquire(RLock lock, long wait, long lease) throws InterruptedException {
        long term = lease > 0 ? lease : -1;
        if (lock instanceof RFencedLock fenced && wait >= 0) {
            return fenced.tryLockAndGetToken(wait, term, TimeUnit.MILLISECONDS);
        }
        boolean taken = true;
        if (wait < 0) {
            // Not lockAndGetToken for a fenced one: in 4.7.0 that ignores the lease.
            lock.lockInterruptibly(term, TimeUnit.MILLISECONDS);
        } else if (wait == 0 && lease == 0) {
            taken = lock.tryLock();
        } else {
            taken = lock.tryLock(wait, term, TimeUnit.MILLISECONDS);
        }
        if (!taken) {
            return null;
        }
        return lock instanceof RFencedLock fenced ? fenced.getToken() : 0L;
    }

    /** unlock TYPE NAME gives the time at which it began. */
    private String[] unlock(String[] args) {
        String begin = now();
        find(args[0], args[1]).unlock();
        return new String[] {begin};
    }

    /** force TYPE NAME says no if nobody held it. */
    private String[] force(String[] args) {
        String begin = now();
        return find(args[0], args[1]).forceUnlock() ? new String[] {begin} : null;
    }

    /** state TYPE NAME gives whether it is locked, how often by this thread, and the TTL. */
    private String[] state(String[] args) {
        RLock lock = find(args[0], args[1]);
        int count = lock.isHeldByCurrentThread() ? lock.getHoldCount() : 0;
        return new String[] {"" + lock.isLocked(), "" + count, "" + lock.remainTimeToLive()};
    }

    /** token TYPE NAME gives the counter of a fenced lock, or null. */
    private String[] token(String[] args) {
        return new String[] {"" + ((RFencedLock) find(args[0], args[1])).getToken()};
    }

    /** lockAndGetToken TYPE NAME LEASE is lock of a fenced lock in one call. */
    private String[] lockAndGetToken(String[] args) {
        RFencedLock lock = (RFencedLock) find(args[0], args[1]);
        return taken(lock.lockAndGetToken(Long.parseLong(args[2]), TimeUnit.MILLISECONDS));
    }

    /** name TYPE NAME gives the name that the lock has in Redis. */
    private String[] name(String[] args) {
        return new String[] {find(args[0], args[1]).getName()};
    }

    /** subscribe KIND CHANNEL, of kind plain or sharded. */
    private String[] subscribe(String[] args) {
        RTopic topic = args[0].equals("sharded") ? redisson.getShardedTopic(args[1], StringCodec.INSTANCE)
                : redisson.getTopic(args[1], StringCodec.INSTANCE);
        Queue<String> messages = heard.computeIfAbsent(args[1], key -> new ConcurrentLinkedQueue<>());
        topic.addListener(String.class, (channel, message) -> messages.add(message));
        return new String[0];
    }

    /** heard CHANNEL gives the messages since it was asked last. */
    private String[] heard(String[] args) {
        Queue<String> messages = heard.get(args[0]);
        Queue<String> taken = new ArrayDeque<>();
        for (String message; (message = messages.poll()) != null;) {
            taken.add(message);
        }
        return taken.toArray(String[]::new);
    }

    /**
     * sections TYPE NAME COUNTER N enters N times; each time a number is read and written by separate
     * commands, which loses counts unless all exclude each other. Of a type rw every fourth section writes two
     * numbers, and the others see whether they differ.
     */
    private String[] sections(String[] args) throws InterruptedException {
        String type = args[0];
        String counter = args[2];
        long writes = 0;
        for (int i = 0; i < Integer.parseInt(args[3]); i++) {
            boolean reads = type.equals("rw") && i % 4 != 0;
            RLock lock = find(reads ? "read" : type.equals("rw") ? "write" : type, args[1]);
            // All ways in: with a lease, and with renewal, having given up once before.
            Long token = null;
            try {
                token = i % 2 == 0 ? acquire(lock, i % 8 == 6 ? i % 5 : 60_000, 20_000) : null;
            } catch (RedisTimeoutException e) {
                if (i % 8 != 6) {
                    throw e;
                }
                // So ends a wait that is over before the subscription.
            }
            if (token == null) {
                token = acquire(lock, -1, 0);
            }
            RBucket<String> number = redisson.getBucket(counter, StringCodec.INSTANCE);
            RBucket<String> twin = redisson.getBucket(counter + ":twin", StringCodec.INSTANCE);
            String value = number.get();
            if (reads) {
                String other = twin.get();
                if (!String.valueOf(value).equals(String.valueOf(other))) {
                    throw new IllegalStateException("a reader saw " + value + " and " + other);
                }
            } else {
                String next = Long.toString(value == null ? 1 : Long.parseLong(value) + 1);
                number.set(next);
                writes++;
                if (type.equals("rw")) {
                    twin.set(next);
                }
            }
            if (token > 0) {
                redisson.<String>getList(counter + ":tokens", StringCodec.INSTANCE).add(token.toString());
            }
            lock.unlock();
        }
        return new String[] {Long.toString(writes)};
    }

    /** race TYPE NAME UNTIL takes and releases a lock until that time of day; gives each wait, in microseconds. */
    private String[] race(String[] args) throws InterruptedException {
        RLock lock = find(args[0], args[1]);
        List<String> waits = new ArrayList<>();
        for (long until = Long.parseLong(args[2]); Long.parseLong(now()) < until;) {
            long begin = System.nanoTime();
            lock.lockInterruptibly();
            long got = System.nanoTime();
            boolean inTime = Long.parseLong(now()) < until;
            lock.unlock();
            if (inTime) {
                waits.add(Long.toString((got - begin) / 1000));
            }
        }
        return waits.toArray(String[]::new);
    }

    /**
     * semaphore NAME set | add | acquire | release N, drain or available; acquire N WAIT, below 0 for however long it takes;
     * inside COUNTER TIMES PERMITS takes permits that often, and adds what it has to a counter meanwhile.
     */
    private String[] semaphore(String[] args) throws InterruptedException {
        RSemaphore permits = redisson.getSemaphore(args[0]);
        int n = args.length > 2 && !args[1].equals("inside") ? Integer.parseInt(args[2]) : 0;
        String begin = now();
        switch (args[1]) {
            case "set" -> {
                return permits.trySetPermits(n) ? new String[] {begin} : null;
            }
            case "add" -> permits.addPermits(n);
            case "acquire" -> {
                long wait = Long.parseLong(args[3]);
                if (wait < 0) {
                    permits.acquire(n);
                } else if (!permits.tryAcquire(n, wait, TimeUnit.MILLISECONDS)) {
                    return null;
                }
                return new String[] {now()};
            }
            case "release" -> permits.release(n);
            case "drain" -> {
                return new String[] {"" + permits.drainPermits()};
            }
            case "available" -> {
                return new String[] {"" + permits.availablePermits()};
            }
            case "inside" -> {
                RAtomicLong inside = redisson.getAtomicLong(args[2]);
                for (int i = 0; i < Integer.parseInt(args[3]); i++) {
                    int take = 1 + i % 2;
                    permits.acquire(take);
                    long now = inside.addAndGet(take);
                    if (now > Long.parseLong(args[4])) {
                        throw new IllegalStateException(now + " permits are taken");
                    }
                    inside.addAndGet(-take);
                    permits.release(take);
                }
            }
            default -> throw new IllegalArgumentException("no command " + args[1]);
        }
        return new String[] {begin};
    }

    /** latch NAME set N, down, count, wait or delete. */
    private String[] latch(String[] args) throws InterruptedException {
        RCountDownLatch latch = redisson.getCountDownLatch(args[0]);
        String begin = now();
        switch (args[1]) {
            case "set" -> {
                return latch.trySetCount(Long.parseLong(args[2])) ? new String[] {begin} : null;
            }
            case "down" -> latch.countDown();
            case "count" -> {
                return new String[] {"" + latch.getCount()};
            }
            case "wait" -> {
                latch.await();
                return new String[] {now()};
            }
            case "delete" -> {
                return latch.delete() ? new String[] {begin} : null;
            }
            default -> throw new IllegalArgumentException("no command " + args[1]);
        }
        return new String[] {begin};
    }

    private static String now() {
        return Long.toString(ChronoUnit.MICROS.between(Instant.EPOCH, Instant.now()));
    }
}

package rlock.interop;

import java.util.ArrayDeque;
import java.util.Deque;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;

import org.redisson.api.RAtomicLong;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RedissonClient;

/** What can be asked of a semaphore whose permits have leases. */
final class Permits {
    private final RedissonClient redisson;
    private final Map<String, Deque<List<String>>> taken = new ConcurrentHashMap<>();

    Permits(RedissonClient redisson) {
        this.redisson = redisson;
    }

    private RPermitExpirableSemaphore find(String name) {
        return redisson.getPermitExpirableSemaphore(name);
    }

    /** permits NAME N says no if they were set before. */
    String[] set(String[] args) {
        return find(args[0]).trySetPermits(Integer.parseInt(args[1])) ? new String[0] : null;
    }

    /** add NAME N. */
    String[] add(String[] args) {
        find(args[0]).addPermits(Integer.parseInt(args[1]));
        return new String[0];
    }

    /** available NAME gives how many are free, and how many there are. */
    String[] available(String[] args) {
        RPermitExpirableSemaphore semaphore = find(args[0]);
        return new String[] {"" + semaphore.availablePermits(), "" + semaphore.getPermits()};
    }

    /** take NAME N WAIT (below 0: as long as it takes) LEASE. */
    String[] take(String[] args) throws InterruptedException {
        List<String> ids = acquire(args[0], Integer.parseInt(args[1]), Long.parseLong(args[2]), Long.parseLong(args[3]));
        if (ids == null || ids.isEmpty()) {
            return null;
        }
        taken.computeIfAbsent(key(args[0]), key -> new ArrayDeque<>()).push(ids);
        return new String[0];
    }

    private static String key(String name) {
        return Thread.currentThread().getId() + "\t" + name;
    }

    private List<String> acquire(String name, int n, long wait, long lease) throws InterruptedException {
        RPermitExpirableSemaphore semaphore = find(name);
        long term = lease > 0 ? lease : -1;
        if (n == 1) {
            String id = wait < 0 ? semaphore.acquire(term, TimeUnit.MILLISECONDS)
                    : semaphore.tryAcquire(wait, term, TimeUnit.MILLISECONDS);
            return id == null ? null : List.of(id);
        }
        return wait < 0 ? semaphore.acquire(n, term, TimeUnit.MILLISECONDS)
                : semaphore.tryAcquire(n, wait, term, TimeUnit.MILLISECONDS);
    }

    /** give NAME gives back what this thread took last. */
    String[] give(String[] args) {
        release(args[0], taken.get(key(args[0])).pop());
        return new String[0];
    }

    private void release(String name, List<String> ids) {
        if (ids.size() == 1) {
            find(name).release(ids.get(0));
        } else {
            find(name).release(ids);
        }
    }

    /** stints NAME COUNTER PERMITS N takes permits N times, and sees how many are out. */
    String[] stints(String[] args) throws InterruptedException {
        RAtomicLong inside = redisson.getAtomicLong(args[1]);
        for (int i = 0; i < Integer.parseInt(args[3]); i++) {
            int n = 1 + i % 2;
            List<String> ids = acquire(args[0], n, 60_000, 20_000);
            if (ids == null || ids.size() != n) {
                throw new IllegalStateException("took " + ids);
            }
            long out = inside.addAndGet(n);
            if (out > Long.parseLong(args[2])) {
                throw new IllegalStateException(out + " permits are out");
            }
            inside.addAndGet(-n);
            release(args[0], ids);
        }
        return new String[0];
    }
}

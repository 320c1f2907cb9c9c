// A Redisson program of a few lines, for the tests of the bridges. Values are text (StringCodec).
//
//   java RedissonPeer.java URL QUEUE offer COUNT MILLISECONDS   offers "java-N", each with a random delay up to that
//   java RedissonPeer.java URL QUEUE take LOG                   holds the delayed queue, takes until killed, writes a
//                                                               line per value

import java.io.FileWriter;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RBlockingQueue;
import org.redisson.api.RDelayedQueue;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.Config;

public class RedissonPeer {
    public static void main(String[] given) throws Exception {
        Config config = new Config();
        config.setCodec(StringCodec.INSTANCE);
        config.useSingleServer().setAddress(given[0]).setConnectionMinimumIdleSize(1).setConnectionPoolSize(4)
            .setSubscriptionConnectionMinimumIdleSize(1).setSubscriptionConnectionPoolSize(2);
        RedissonClient redisson = Redisson.create(config);
        RBlockingQueue<String> queue = redisson.getBlockingQueue(given[1]);
        RDelayedQueue<String> delayed = redisson.getDelayedQueue(queue);
        if (given[2].equals("offer")) {
            Random random = new Random(1);
            for (int n = 0; n < Integer.parseInt(given[3]); n++) {
                delayed.offer("java-" + n, random.nextInt(Integer.parseInt(given[4])), TimeUnit.MILLISECONDS);
            }
            redisson.shutdown();
            return;
        }
        System.out.println("taking");
        try (FileWriter log = new FileWriter(given[3], true)) {
            while (true) {
                log.write(queue.take() + "\n");
                log.flush();
            }
        }
    }
}

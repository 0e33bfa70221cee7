import io.aeron.ExclusivePublication;
import io.aeron.Image;
import io.aeron.archive.Archive;
import io.aeron.archive.ArchiveThreadingMode;
import io.aeron.archive.client.AeronArchive;
import io.aeron.cluster.ClusteredMediaDriver;
import io.aeron.cluster.ConsensusModule;
import io.aeron.cluster.client.AeronCluster;
import io.aeron.cluster.client.EgressListener;
import io.aeron.cluster.codecs.CloseReason;
import io.aeron.cluster.service.ClientSession;
import io.aeron.cluster.service.Cluster;
import io.aeron.cluster.service.ClusteredService;
import io.aeron.cluster.service.ClusteredServiceContainer;
import io.aeron.driver.MediaDriver;
import io.aeron.driver.ThreadingMode;
import io.aeron.logbuffer.Header;
import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.concurrent.locks.LockSupport;
import java.util.function.Supplier;
import org.agrona.DirectBuffer;
import org.agrona.concurrent.IdleStrategy;
import org.agrona.concurrent.NoOpLock;
import org.agrona.concurrent.ShutdownSignalBarrier;
import org.agrona.concurrent.SleepingIdleStrategy;
import org.agrona.concurrent.UnsafeBuffer;

/**
 * A node of an Aeron Cluster of three whose service returns what it receives, or a client that
 * replays a schedule of requests.
 *
 * <p>{@code node ID FOLDER DRIVER SYNC} runs a node. FOLDER is for its archive and its log, DRIVER
 * for the buffers of its media driver, SYNC is the file sync level: 0 none, 1 data.
 *
 * <p>{@code load SCHEDULE DRIVER} sends the schedule once as a warm-up and writes "ready". For each
 * line of standard input it sends the schedule again, each request at its time or as soon as it
 * can, and answers with: requests counted, answers, and p50, p99 and mean of the slowest tenth in
 * ns, from the intended time of a request to its answer. The schedule, little-endian: for each
 * request its time in ns (long) and its size in bytes (int). Requests of the first 500 ms are not
 * counted.
 */
public final class ClusterPeer {
    private static final int NODES = 3;
    private static final int PORT_BASE = 24100;
    private static final String CLIENT_CHANNEL = "aeron:udp?term-length=1m";
    private static final String ANY_PORT = "aeron:udp?endpoint=localhost:0";
    private static final int LOG_TERM_BYTES = 16 << 20;
    private static final long UNCOUNTED_NS = 500_000_000L;
    private static final long LATE_NS_MAX = 10_000_000_000L;
    private static final long KEEP_ALIVE_NS = 1_000_000_000L;

    /** Threads sleep between polls: there are more of them than CPUs. */
    private static final Supplier<IdleStrategy> IDLE = () -> new SleepingIdleStrategy(50_000);

    private ClusterPeer() {}

    public static void main(String[] args) throws Exception {
        if (args[0].equals("node")) {
            node(Integer.parseInt(args[1]), new File(args[2]), args[3], Integer.parseInt(args[4]));
        } else {
            new Load(Path.of(args[1])).run(args[2]);
        }
    }

    /** Port of a node for one of its five purposes. */
    private static int port(int node, int purpose) {
        return PORT_BASE + node * 10 + purpose;
    }

    private static String members() {
        StringBuilder text = new StringBuilder();
        for (int node = 0; node < NODES; node++) {
            text.append(node);
            for (int purpose = 0; purpose < 5; purpose++) {
                text.append(",localhost:").append(port(node, purpose));
            }
            text.append('|');
        }
        return text.toString();
    }

    private static String ingressEndpoints() {
        StringBuilder text = new StringBuilder();
        for (int node = 0; node < NODES; node++) {
            text.append(node == 0 ? "" : ",").append(node).append("=localhost:").append(port(node, 0));
        }
        return text.toString();
    }

    private static MediaDriver.Context driver(String folder) {
        return new MediaDriver.Context()
                .aeronDirectoryName(folder)
                .dirDeleteOnStart(true)
                .dirDeleteOnShutdown(true)
                .termBufferSparseFile(true)
                .threadingMode(ThreadingMode.SHARED)
                .sharedIdleStrategy(IDLE.get());
    }

    private static void node(int id, File folder, String driverFolder, int syncLevel) {
        ShutdownSignalBarrier end = new ShutdownSignalBarrier();
        Archive.Context archive = new Archive.Context()
                .aeronDirectoryName(driverFolder)
                .archiveDir(new File(folder, "archive"))
                .controlChannel("aeron:udp?endpoint=localhost:" + port(id, 4))
                .localControlChannel("aeron:ipc?term-length=1m")
                .replicationChannel(ANY_PORT)
                .recordingEventsEnabled(false)
                .segmentFileLength(LOG_TERM_BYTES)
                .fileSyncLevel(syncLevel)
                .catalogFileSyncLevel(syncLevel)
                .idleStrategySupplier(IDLE)
                .threadingMode(ArchiveThreadingMode.SHARED);
        AeronArchive.Context client = new AeronArchive.Context()
                .lock(NoOpLock.INSTANCE)
                .controlRequestChannel(archive.localControlChannel())
                .controlResponseChannel(archive.localControlChannel())
                .aeronDirectoryName(driverFolder);
        File clusterFolder = new File(folder, "cluster");
        ConsensusModule.Context consensus = new ConsensusModule.Context()
                .clusterMemberId(id)
                .clusterMembers(members())
                .clusterDir(clusterFolder)
                .ingressChannel(CLIENT_CHANNEL)
                .logChannel("aeron:udp?term-length=" + LOG_TERM_BYTES)
                .replicationChannel(ANY_PORT)
                .archiveContext(client.clone())
                .fileSyncLevel(syncLevel)
                .idleStrategySupplier(IDLE);
        ClusteredServiceContainer.Context service = new ClusteredServiceContainer.Context()
                .aeronDirectoryName(driverFolder)
                .archiveContext(client.clone())
                .clusterDir(clusterFolder)
                .clusteredService(new Echo())
                .idleStrategySupplier(IDLE);
        try (ClusteredMediaDriver driver =
                        ClusteredMediaDriver.launch(driver(driverFolder), archive, consensus);
                ClusteredServiceContainer container = ClusteredServiceContainer.launch(service)) {
            end.await();
        }
    }

    /** Returns each message to its sender. */
    private static final class Echo implements ClusteredService {
        private Cluster cluster;

        @Override
        public void onStart(Cluster started, Image snapshot) {
            cluster = started;
        }

        @Override
        public void onSessionMessage(
                ClientSession session,
                long timestamp,
                DirectBuffer buffer,
                int offset,
                int length,
                Header header) {
            IdleStrategy idle = cluster.idleStrategy();
            idle.reset();
            while (session.offer(buffer, offset, length) < 0 && !session.isClosing()) {
                idle.idle();
            }
        }

        @Override
        public void onSessionOpen(ClientSession session, long timestamp) {}

        @Override
        public void onSessionClose(ClientSession session, long timestamp, CloseReason reason) {}

        @Override
        public void onTimerEvent(long correlationId, long timestamp) {}

        @Override
        public void onTakeSnapshot(ExclusivePublication snapshot) {}

        @Override
        public void onRoleChange(Cluster.Role role) {}

        @Override
        public void onTerminate(Cluster ended) {}
    }

    /** Replays a schedule. */
    private static final class Load implements EgressListener {
        private final long[] timesNs;
        private final int[] sizes;
        private final long[] latenciesNs;
        private final UnsafeBuffer message;
        private long beginNs;
        private int answers;
        /** Answers to requests of an earlier replay are not counted. */
        private int replay;

        Load(Path schedule) throws Exception {
            ByteBuffer file = ByteBuffer.wrap(Files.readAllBytes(schedule));
            file.order(ByteOrder.LITTLE_ENDIAN);
            int count = file.remaining() / 12;
            timesNs = new long[count];
            sizes = new int[count];
            latenciesNs = new long[count];
            for (int at = 0; at < count; at++) {
                timesNs[at] = file.getLong();
                sizes[at] = file.getInt();
            }
            message = new UnsafeBuffer(new byte[Arrays.stream(sizes).max().getAsInt()]);
        }

        void run(String driverFolder) throws Exception {
            AeronCluster.Context context = new AeronCluster.Context()
                    .egressListener(this)
                    .egressChannel("aeron:udp?endpoint=localhost:0|term-length=1m")
                    .ingressChannel(CLIENT_CHANNEL)
                    .ingressEndpoints(ingressEndpoints())
                    .messageTimeoutNs(60_000_000_000L)
                    .aeronDirectoryName(driverFolder);
            BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
            try (MediaDriver driver = MediaDriver.launch(driver(driverFolder));
                    AeronCluster cluster = AeronCluster.connect(context)) {
                replay(cluster);
                System.out.println("ready");
                while (input.readLine() != null) {
                    replay(cluster);
                    System.out.println(figures());
                }
            }
        }

        private void replay(AeronCluster cluster) {
            Arrays.fill(latenciesNs, -1);
            replay++;
            answers = 0;
            beginNs = System.nanoTime() + 10_000_000L;
            long endNs = beginNs + timesNs[timesNs.length - 1] + LATE_NS_MAX;
            long keepAliveNs = beginNs;
            int next = 0;
            for (long now = beginNs; answers < sizes.length && now < endNs; now = System.nanoTime()) {
                boolean isIdle = true;
                while (next < sizes.length && beginNs + timesNs[next] <= now) {
                    message.putInt(0, replay);
                    message.putInt(4, next);
                    if (cluster.offer(message, 0, sizes[next]) < 0) {
                        break;
                    }
                    next++;
                    isIdle = false;
                }
                if (cluster.pollEgress() > 0) {
                    isIdle = false;
                }
                if (now - keepAliveNs > KEEP_ALIVE_NS && cluster.sendKeepAlive()) {
                    keepAliveNs = now;
                }
                if (isIdle) {
                    LockSupport.parkNanos(50_000);
                }
            }
        }

        @Override
        public void onMessage(
                long session, long timestamp, DirectBuffer buffer, int offset, int length, Header header) {
            if (buffer.getInt(offset) != replay) {
                return;
            }
            int at = buffer.getInt(offset + 4);
            latenciesNs[at] = System.nanoTime() - beginNs - timesNs[at];
            answers++;
        }

        private String figures() {
            int first = 0;
            while (first < timesNs.length && timesNs[first] < UNCOUNTED_NS) {
                first++;
            }
            long[] counted = Arrays.copyOfRange(latenciesNs, first, latenciesNs.length);
            long[] sorted = Arrays.stream(counted).filter(ns -> ns >= 0).sorted().toArray();
            int n = sorted.length;
            if (n == 0) {
                return counted.length + " 0 0 0 0";
            }
            long[] slowest = Arrays.copyOfRange(sorted, n - Math.max(1, n / 10), n);
            double es10 = Arrays.stream(slowest).average().getAsDouble();
            return String.format(
                    "%d %d %d %d %.0f",
                    counted.length, n, sorted[(n - 1) / 2], sorted[(int) Math.ceil(n * 0.99) - 1], es10);
        }
    }
}

// Security managers are the only way to see every file and socket that Java opens.
@file:Suppress("DEPRECATION")

package org.fedlens.sdk

import android.content.Context
import android.os.Handler
import android.os.Looper
import android.os.StrictMode
import android.os.strictmode.Violation
import dalvik.system.BlockGuard
import org.junit.Assert.fail
import org.robolectric.pluginapi.TestEnvironmentLifecyclePlugin
import org.robolectric.util.ReflectionHelpers.getField
import org.robolectric.util.ReflectionHelpers.getStaticField
import java.io.File
import java.security.Permission

/**
 * Strict mode in every test on Robolectric, which finds this class by its name in `META-INF/services`: what Android calls
 * on the main thread waits for neither disk nor network.
 *
 * Android's own code reports databases and preferences, as on a phone. Files and sockets are reported there by libcore's
 * system calls; here a security manager takes their place, which Java has up to version 17. Tests themselves may wait.
 */
class StrictMainThread : TestEnvironmentLifecyclePlugin {
    override fun onSetupApplicationState() {
        // Strict mode reports at the loop's next turn, to which a test need not come; until then it reports no more.
        val pending: ThreadLocal<MutableList<Any>> = getStaticField(StrictMode::class.java, "violationsBeingTimed")
        pending.get()?.forEach { note(getField(it, "mViolation")) }
        pending.get()?.clear()
        val earlier = forget()
        if (earlier.isNotEmpty()) throw AssertionError("in an earlier test:\n${earlier.joinToString("\n")}")
        val policy = StrictMode.ThreadPolicy.Builder().detectDiskReads().detectDiskWrites().detectNetwork()
        // Thrown here, an error would keep strict mode from ever reporting again.
        policy.penaltyListener(Runnable::run) {
            note(it)?.let { told -> Handler(Looper.getMainLooper()).post { fail(told) } }
        }
        StrictMode.setThreadPolicy(policy.build())
        if (SEES_FILES) System.setSecurityManager(FileManager(Thread.currentThread()))
    }

    private class FileManager(
        private val main: Thread,
    ) : SecurityManager() {
        private var isLooking = false

        override fun checkPermission(permission: Permission) = Unit

        override fun checkPermission(
            permission: Permission,
            context: Any,
        ) = Unit

        override fun checkRead(file: String) = look { if (file.startsWith(KEPT) && FONTS !in file) onReadFromDisk() }

        override fun checkWrite(file: String) = look { onWriteToDisk() }

        override fun checkDelete(file: String) = look { onWriteToDisk() }

        override fun checkConnect(
            host: String,
            port: Int,
        ) = look { onNetwork() }

        override fun checkListen(port: Int) = Unit

        private inline fun look(report: BlockGuard.Policy.() -> Unit) {
            if (Thread.currentThread() !== main || isLooking) return
            val stack = Throwable().stackTrace
            // Nothing below may be loaded while a class is: it could be the same one. Class loaders also read resources,
            // which lie among temporary files if the checkout does.
            for (frame in stack) {
                val name = frame.className
                if (name == "java.lang.ClassLoader" || name == "java.lang.CompoundEnumeration") return
            }
            isLooking = true
            try {
                if (isAndroidsCall(stack.asList())) BlockGuard.getThreadPolicy().report()
            } finally {
                isLooking = false
            }
        }
    }

    companion object {
        /** True if Java still has what reports files. */
        val SEES_FILES = Runtime.version().feature() <= 17

        private val waits = ArrayList<String>()

        // What a phone keeps. Programs and resources, which a phone has mapped, lie elsewhere, its fonts here as well.
        private val KEPT: String = System.getProperty("java.io.tmpdir")
        private const val FONTS = "/fonts/"
        private val BUILT = File("target").absoluteFile
        private val LIBRARIES = listOf("java.", "jdk.", "kotlin.", "kotlinx.", "okhttp3.", "okio.", "com.google.")
        private val tests = HashMap<String, Boolean>()

        /** What the main thread has waited for since the last call. */
        fun forget(): List<String> = waits.toList().also { waits.clear() }

        private fun note(violation: Violation): String? {
            val stack = violation.stackTrace.asList()
            if (!isAndroidsCall(stack)) return null
            val told = listOf("the main thread waits: ${violation.javaClass.simpleName}") + stack
            return told.joinToString("\n  at ").also(waits::add)
        }

        /** True if code of the product waits that Android has called, or that is a component of Android's. */
        private fun isAndroidsCall(stack: List<StackTraceElement>): Boolean {
            val names = stack.map { it.className }.filter { !it.startsWith("org.fedlens.sdk.StrictMainThread") }
            val waiting = names.dropWhile { !it.startsWith("org.fedlens.") }
            // What Robolectric itself keeps in files is not on a phone's disk.
            if (names.firstOrNull { !isOfLibraries(it) }?.let(::isOfTools) == true) return false
            val product = waiting.takeWhile { isProduct(it) || isOfLibraries(it) }
            val outermost = product.lastOrNull(::isProduct) ?: return false
            val caller = waiting.drop(product.size).firstOrNull { !isOfTools(it) && !isOfLibraries(it) }
            return when {
                caller == null -> true
                // Calls from another process come on threads of their own.
                caller == "android.os.Binder" -> false
                isTest(caller) -> Context::class.java.isAssignableFrom(Class.forName(outermost))
                else -> true
            }
        }

        private fun isOfTools(name: String) = name.startsWith("org.robolectric.")

        private fun isOfLibraries(name: String) = LIBRARIES.any(name::startsWith)

        private fun isProduct(name: String) = name.startsWith("org.fedlens.") && !isTest(name)

        private fun isTest(name: String) =
            tests.getOrPut(name) { File(BUILT, "test-classes/${name.replace('.', '/')}.class").isFile }
    }
}

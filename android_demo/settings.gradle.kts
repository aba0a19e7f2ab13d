// For Android Studio. FedLens is built and tested with Maven (`make android`); these Gradle files name the same sources
// and versions, which a test compares, and have not been run.

pluginManagement {
    repositories {
        google()
        mavenCentral()
        gradlePluginPortal()
    }
}

dependencyResolutionManagement {
    repositoriesMode = RepositoriesMode.FAIL_ON_PROJECT_REPOS
    repositories {
        google()
        mavenCentral()
    }
}

rootProject.name = "fedlens-android"

include(":sdk", ":app")
